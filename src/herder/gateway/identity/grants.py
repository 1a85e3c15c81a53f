"""Privilege escalation check for roles and bindings: users cannot grant more than they have.

Rules are read from the API server, because a stale cache could grant too much.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from herder.api.identity.builtin_roles import EVERYTHING
from herder.api.identity.escalation import Actor, Roles, validate
from herder.api.identity.projects import ProjectKey, project_key_of_namespace
from herder.api.identity.roles import held_rules, is_owner, subject_of
from herder.api.management.kinds import (
    CLUSTER_BINDING,
    GLOBAL_ROLE,
    GLOBAL_ROLE_BINDING,
    PROJECT_BINDING,
    ROLE_TEMPLATE,
)
from herder.api.management.names import LOCAL
from herder.engine.client.client import Client
from herder.engine.meta.errors import InternalError, StatusError
from herder.engine.meta.kinds import Kind, Object
from herder.engine.meta.rules import missing_rules
from herder.engine.wire import User

SUPERUSERS = "system:masters"

RulesOf = Callable[[User, str], Awaitable[list[Object]]]
"""Rules of a user in a namespace of the manager's cluster, or at its cluster scope ("")."""


async def refusal(
    client: Client, rules_of: RulesOf, user: User, kind: Kind, old: Object | None, new: Object | None
) -> StatusError | None:
    """The error if the write is refused, or if that cannot be determined."""
    if SUPERUSERS in user.groups:
        return None
    try:
        roles, bindings = await _roles(client), await _all(client, GLOBAL_ROLE_BINDING)
        actor = await _actor(client, rules_of, user, roles, bindings, _scope_of(kind, new, roles))
    except (StatusError, OSError, TimeoutError) as error:
        return InternalError(f"cannot determine the rights of {user.name}: {error}")
    return validate(kind, old, new, actor, roles)


@dataclass(frozen=True, slots=True)
class GrantScope:
    """Where the granted rights apply."""

    namespaces: Sequence[str] = ()
    cluster: str = ""
    project: ProjectKey | None = None


def _scope_of(kind: Kind, new: Object | None, roles: Roles) -> GrantScope:
    if new is None:
        return GrantScope()
    if kind == CLUSTER_BINDING:
        return GrantScope(cluster=new.get("clusterName") or "")
    if kind == PROJECT_BINDING:
        place = project_key_of_namespace(new["metadata"].get("namespace") or "")
        return GrantScope(cluster=place.cluster, project=place) if place else GrantScope()
    role = roles.global_role(new.get("globalRoleName") or "") if kind == GLOBAL_ROLE_BINDING else new
    return GrantScope(sorted((role or {}).get("namespacedRules") or {}))


async def _actor(
    client: Client, rules_of: RulesOf, user: User, roles: Roles, bindings: list[Object], scope: GrantScope
) -> Actor:
    here = await rules_of(user, "")
    in_namespaces = {place: await rules_of(user, place) for place in scope.namespaces}
    everywhere = _everywhere(user, roles, bindings, here)
    in_cluster_rules = list(everywhere)
    owned = {"", scope.cluster} if _owns_everywhere(user, roles, bindings, here) else set[str]()
    if scope.cluster:
        listed = await _all(client, CLUSTER_BINDING, namespace=scope.cluster)
        found = [each for each in listed if each.get("clusterName") == scope.cluster]
        in_cluster_rules += _bound_rules(user, roles, found)
        names = (each.get("roleTemplateName") or "" for each in found if _has_subject(each, user))
        owned |= {scope.cluster} if _has_owner(names, roles) else set()
    if scope.cluster == LOCAL:
        in_cluster_rules += here
    in_project_rules, project = list(in_cluster_rules), scope.project
    if project is not None:
        found = await _all(client, PROJECT_BINDING, namespace=project.namespace)
        in_project_rules += _bound_rules(user, roles, (each for each in found if each.get("projectName") == project.id))
    return Actor(
        here=here,
        in_namespace=lambda place: in_namespaces.get(place, []),
        in_cluster=lambda name: in_cluster_rules if name == scope.cluster else everywhere,
        in_project=lambda name: in_project_rules if project is not None and name == project.id else everywhere,
        everywhere=everywhere,
        owns=lambda name: name in owned,
    )


def _everywhere(user: User, roles: Roles, bindings: Iterable[Object], here: list[Object]) -> list[Object]:
    """Full rights in the manager's cluster imply full rights in all others."""
    if not missing_rules(here, EVERYTHING):
        return list(EVERYTHING)
    rules: list[Object] = []
    for binding in bindings:
        role = roles.global_role(binding.get("globalRoleName") or "")
        if role is not None and _has_subject(binding, user):
            templates = (roles.template(name) for name in role.get("inheritedClusterRoles") or ())
            rules += [rule for template in templates if template for rule in held_rules(template, roles.template)]
    return rules


def _owns_everywhere(user: User, roles: Roles, bindings: Iterable[Object], here: list[Object]) -> bool:
    own = (roles.global_role(each.get("globalRoleName") or "") for each in bindings if _has_subject(each, user))
    names = (name for role in own if role for name in role.get("inheritedClusterRoles") or ())
    return not missing_rules(here, EVERYTHING) or _has_owner(names, roles)


def _has_owner(names: Iterable[str], roles: Roles) -> bool:
    """Whether one of these templates makes its holder an owner."""
    templates = (roles.template(name) for name in names)
    return any(template is not None and is_owner(template, roles.template) for template in templates)


def _bound_rules(user: User, roles: Roles, bindings: Iterable[Object]) -> list[Object]:
    """Rules that the user has through these bindings."""
    rules: list[Object] = []
    for binding in bindings:
        template = roles.template(binding.get("roleTemplateName") or "")
        if template is not None and _has_subject(binding, user):
            rules += held_rules(template, roles.template)
    return rules


def _has_subject(binding: Object, user: User) -> bool:
    subject = subject_of(binding)
    if isinstance(subject, str) or binding["metadata"].get("deletionTimestamp"):
        return False
    return subject["name"] in user.groups if subject["kind"] == "Group" else subject["name"] == user.name


async def _roles(client: Client) -> Roles:
    templates = {each["metadata"]["name"]: each for each in await _all(client, ROLE_TEMPLATE)}
    global_roles = {each["metadata"]["name"]: each for each in await _all(client, GLOBAL_ROLE)}
    return Roles(templates.get, global_roles.get)


async def _all(client: Client, kind: Kind, namespace: str = "") -> list[Object]:
    return (await client.list_all(kind.resource, namespace=namespace)).items
