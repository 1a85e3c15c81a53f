"""Whether somebody may write a role or a binding: what they have themselves is looked up on the server, since no cache
may be behind where rights could be handed out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from herder.api.identity.escalation import Actor, Roles, validate
from herder.api.identity.projects import Place, placed
from herder.api.identity.roles import held_rules, is_owner, subject_of
from herder.api.identity.shipped import EVERYTHING
from herder.api.management.kinds import (
    CLUSTER_BINDING,
    GLOBAL_ROLE,
    GLOBAL_ROLE_BINDING,
    PROJECT_BINDING,
    ROLE_TEMPLATE,
)
from herder.api.management.names import LOCAL
from herder.engine.client.client import Client
from herder.engine.client.wire import User
from herder.engine.meta.errors import InternalError, StatusError
from herder.engine.meta.kinds import Kind, Object
from herder.engine.meta.rules import missing_rules

SUPERUSERS = "system:masters"

RulesOf = Callable[[User, str], Awaitable[list[Object]]]
"""What a user may do in a namespace of the manager's cluster, or with "" at its cluster scope."""


async def refusal(
    client: Client, rules_of: RulesOf, user: User, kind: Kind, old: Object | None, new: Object | None
) -> StatusError | None:
    """Why this must not be written, if so; also where that cannot be found out."""
    if SUPERUSERS in user.groups:
        return None
    try:
        roles, bindings = await _roles(client), await _all(client, GLOBAL_ROLE_BINDING)
        actor = await _actor(client, rules_of, user, roles, bindings, _about(kind, new, roles))
    except (StatusError, OSError, TimeoutError) as error:
        return InternalError(f"whether {user.name} has the rights that are handed out cannot be told: {error}")
    return validate(kind, old, new, actor, roles)


@dataclass(frozen=True, slots=True)
class About:
    """Where rights matter."""

    namespaces: Sequence[str] = ()
    cluster: str = ""
    project: Place | None = None


def _about(kind: Kind, new: Object | None, roles: Roles) -> About:
    if new is None:
        return About()
    if kind == CLUSTER_BINDING:
        return About(cluster=new.get("clusterName") or "")
    if kind == PROJECT_BINDING:
        place = placed(new["metadata"].get("namespace") or "")
        return About(cluster=place.cluster, project=place) if place else About()
    role = roles.global_role(new.get("globalRoleName") or "") if kind == GLOBAL_ROLE_BINDING else new
    return About(sorted((role or {}).get("namespacedRules") or {}))


async def _actor(
    client: Client, rules_of: RulesOf, user: User, roles: Roles, bindings: list[Object], about: About
) -> Actor:
    here = await rules_of(user, "")
    in_places = {place: await rules_of(user, place) for place in about.namespaces}
    everywhere = _everywhere(user, roles, bindings, here)
    there = list(everywhere)
    owned = {"", about.cluster} if _owns_everywhere(user, roles, bindings, here) else set[str]()
    if about.cluster:
        listed = await _all(client, CLUSTER_BINDING, namespace=about.cluster)
        found = [each for each in listed if each.get("clusterName") == about.cluster]
        there += _bound(user, roles, found)
        names = (each.get("roleTemplateName") or "" for each in found if _is_for(each, user))
        owned |= {about.cluster} if _has_owner(names, roles) else set()
    if about.cluster == LOCAL:
        there += here
    inside, project = list(there), about.project
    if project is not None:
        found = await _all(client, PROJECT_BINDING, namespace=project.namespace)
        inside += _bound(user, roles, (each for each in found if each.get("projectName") == project.id))
    return Actor(
        here=here,
        in_namespace=lambda place: in_places.get(place, []),
        in_cluster=lambda name: there if name == about.cluster else everywhere,
        in_project=lambda name: inside if project is not None and name == project.id else everywhere,
        everywhere=everywhere,
        owns=lambda name: name in owned,
    )


def _everywhere(user: User, roles: Roles, bindings: Iterable[Object], here: list[Object]) -> list[Object]:
    """Who may do everything in the manager's cluster holds the keys of all others."""
    if not missing_rules(here, EVERYTHING):
        return list(EVERYTHING)
    rules: list[Object] = []
    for binding in bindings:
        role = roles.global_role(binding.get("globalRoleName") or "")
        if role is not None and _is_for(binding, user):
            templates = (roles.template(name) for name in role.get("inheritedClusterRoles") or ())
            rules += [rule for template in templates if template for rule in held_rules(template, roles.template)]
    return rules


def _owns_everywhere(user: User, roles: Roles, bindings: Iterable[Object], here: list[Object]) -> bool:
    own = (roles.global_role(each.get("globalRoleName") or "") for each in bindings if _is_for(each, user))
    names = (name for role in own if role for name in role.get("inheritedClusterRoles") or ())
    return not missing_rules(here, EVERYTHING) or _has_owner(names, roles)


def _has_owner(names: Iterable[str], roles: Roles) -> bool:
    """Whether one of these templates makes its holder an owner."""
    templates = (roles.template(name) for name in names)
    return any(template is not None and is_owner(template, roles.template) for template in templates)


def _bound(user: User, roles: Roles, bindings: Iterable[Object]) -> list[Object]:
    """What the user has by these."""
    rules: list[Object] = []
    for binding in bindings:
        template = roles.template(binding.get("roleTemplateName") or "")
        if template is not None and _is_for(binding, user):
            rules += held_rules(template, roles.template)
    return rules


def _is_for(binding: Object, user: User) -> bool:
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
