"""Privilege escalation checks for roles and bindings.

A user can edit a role only if they hold every permission it then grants, and can bind others, or themselves, only to
permissions they hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from herder.api.identity.builtin_roles import CLUSTER, EVERYTHING, PROJECT
from herder.api.identity.projects import project_key_of_namespace
from herder.api.identity.roles import Templates, granted_rules, is_owner, subject_of, unusable
from herder.api.management.kinds import (
    CLUSTER_BINDING,
    GLOBAL_ROLE,
    GLOBAL_ROLE_BINDING,
    PROJECT_BINDING,
    ROLE_TEMPLATE,
)
from herder.engine.meta.errors import BadRequest, StatusError, forbidden, invalid, invalid_value
from herder.engine.meta.kinds import Kind, Object
from herder.engine.meta.rules import missing_rules

Rules = Sequence[Object]


@dataclass(frozen=True, slots=True)
class Actor:
    """The writer's permissions as RBAC rules: in the manager's cluster, a namespace of it, a managed cluster or a
    project.
    """

    here: Rules
    in_namespace: Callable[[str], Rules]
    in_cluster: Callable[[str], Rules]
    in_project: Callable[[str], Rules]  # <cluster>:<project>: in all its namespaces
    everywhere: Rules  # in every managed cluster, including future ones
    # a cluster, or every one if ""; owners also have permissions on its objects in the manager
    owns: Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Roles:
    """Lookup of existing roles."""

    template: Templates
    global_role: Callable[[str], Object | None]


def validate(kind: Kind, old: Object | None, new: Object | None, actor: Actor, roles: Roles) -> StatusError | None:
    """Return why this write is denied, or None. `new` is None for a deletion."""
    if new is None:
        return _builtin(kind, old, "deleted") if old else None
    if old is not None and _content(old) == _content(new):
        return None
    check = _CHECKS.get(kind)
    return check(old, new, actor, roles) if check else None


def _global_role(old: Object | None, new: Object, actor: Actor, roles: Roles) -> StatusError | None:
    changed = _builtin(GLOBAL_ROLE, old, "changed")
    return changed or _grants_global(GLOBAL_ROLE, new["metadata"].get("name", ""), new, actor, roles)


def _grants_global(kind: Kind, name: str, role: Object, actor: Actor, roles: Roles) -> StatusError | None:
    refusal = _missing(kind, name, actor.here, role.get("rules") or [], "in the manager's cluster")
    for namespace, rules in (role.get("namespacedRules") or {}).items():
        held = [*actor.here, *actor.in_namespace(namespace)]
        refusal = refusal or _missing(kind, name, held, rules or [], f"in namespace {namespace}")
    for inherited in role.get("inheritedClusterRoles") or ():
        template = roles.template(inherited)
        if template is None:
            return _invalid(kind, name, "inheritedClusterRoles", inherited, "RoleTemplate not found")
        if problem := unusable(template, roles.template):
            return _invalid(kind, name, "inheritedClusterRoles", inherited, problem)
        rules = granted_rules(template, roles.template)
        refusal = refusal or _missing(kind, name, actor.everywhere, rules, "in every cluster")
        refusal = refusal or _unowned(kind, name, template, "", actor, roles)
    return refusal


def _global_binding(old: Object | None, new: Object, actor: Actor, roles: Roles) -> StatusError | None:
    name = new["metadata"].get("name", "")
    if error := _same(GLOBAL_ROLE_BINDING, old, new, ("globalRoleName",)) or _subject(GLOBAL_ROLE_BINDING, new):
        return error
    role = roles.global_role(new["globalRoleName"])
    if role is None:
        message = "GlobalRole not found"
        return _invalid(GLOBAL_ROLE_BINDING, name, "globalRoleName", new["globalRoleName"], message)
    return _grants_global(GLOBAL_ROLE_BINDING, name, role, actor, roles)


def _template(old: Object | None, new: Object, actor: Actor, roles: Roles) -> StatusError | None:
    """A RoleTemplate can be bound in any cluster, so its permissions must be held in every cluster."""
    if error := _builtin(ROLE_TEMPLATE, old, "changed"):
        return error
    name = new["metadata"].get("name", "")

    def with_this(other: str) -> Object | None:
        return new if other == name else roles.template(other)

    for inherited in new.get("roleTemplateNames") or ():
        if with_this(inherited) is None:
            return _invalid(ROLE_TEMPLATE, name, "roleTemplateNames", inherited, "RoleTemplate not found")
    # The rules of an external template are only a claim, so writing one requires all permissions.
    rules = EVERYTHING if new.get("external") else granted_rules(new, with_this)
    return _missing(ROLE_TEMPLATE, name, actor.everywhere, rules, "in every cluster")


def _cluster_binding(old: Object | None, new: Object, actor: Actor, roles: Roles) -> StatusError | None:
    meta = new["metadata"]
    name = meta.get("name", "")
    fixed = ("clusterName", "roleTemplateName")
    if error := _same(CLUSTER_BINDING, old, new, fixed) or _subject(CLUSTER_BINDING, new):
        return error
    cluster = new["clusterName"]
    if cluster != meta.get("namespace"):
        message = "must be equal to the binding's namespace"
        return _invalid(CLUSTER_BINDING, name, "clusterName", cluster, message)
    template = roles.template(new["roleTemplateName"])
    message = _unbindable(template, roles) if old is None else ""
    if template is None or message:
        message = message or "RoleTemplate not found"
        return _invalid(CLUSTER_BINDING, name, "roleTemplateName", new["roleTemplateName"], message)
    rules = granted_rules(template, roles.template)
    refusal = _missing(CLUSTER_BINDING, name, actor.in_cluster(cluster), rules, f"in cluster {cluster}")
    return refusal or _unowned(CLUSTER_BINDING, name, template, cluster, actor, roles)


def _project_binding(old: Object | None, new: Object, actor: Actor, roles: Roles) -> StatusError | None:
    meta = new["metadata"]
    name = meta.get("name", "")
    fixed = ("projectName", "roleTemplateName")
    if error := _same(PROJECT_BINDING, old, new, fixed) or _subject(PROJECT_BINDING, new):
        return error
    place = project_key_of_namespace(meta.get("namespace") or "")
    if place is None or new["projectName"] != place.id:
        message = "must be the project of the binding's namespace"
        return _invalid(PROJECT_BINDING, name, "projectName", new["projectName"], message)
    template = roles.template(new["roleTemplateName"])
    message = _unbindable(template, roles, PROJECT) if old is None else ""
    if template is None or message:
        message = message or "RoleTemplate not found"
        return _invalid(PROJECT_BINDING, name, "roleTemplateName", new["roleTemplateName"], message)
    rules = granted_rules(template, roles.template)
    return _missing(PROJECT_BINDING, name, actor.in_project(place.id), rules, f"in project {place.id}")


def _unbindable(template: Object | None, roles: Roles, context: str = CLUSTER) -> str:
    if template is None:
        return "RoleTemplate not found"
    return "it is locked" if template.get("locked") else unusable(template, roles.template, context)


_CHECKS = {
    GLOBAL_ROLE: _global_role,
    GLOBAL_ROLE_BINDING: _global_binding,
    ROLE_TEMPLATE: _template,
    CLUSTER_BINDING: _cluster_binding,
    PROJECT_BINDING: _project_binding,
}
KINDS = tuple(_CHECKS)


# --- refusals -------------------------------------------------------------------------------------------------------


def _missing(kind: Kind, name: str, held: Rules, wanted: Rules, where: str) -> StatusError | None:
    try:
        missing = missing_rules(held, wanted)
    except BadRequest as error:  # too many combinations to compare
        return error
    if not missing:
        return None
    message = "; ".join(_shown(rule) for rule in missing[:10]) + ("; and more" if len(missing) > 10 else "")
    return forbidden(kind.resource.group_resource, name, f"it grants rights that you do not have {where}: {message}")


def _unowned(kind: Kind, name: str, template: Object, cluster: str, actor: Actor, roles: Roles) -> StatusError | None:
    """Having every permission inside a cluster does not make a user its owner."""
    if not is_owner(template, roles.template) or actor.owns(cluster):
        return None
    message = "only owners of the cluster can grant ownership, which includes permissions on its objects in the manager"
    return forbidden(kind.resource.group_resource, name, message)


def _shown(rule: Object) -> str:
    verbs = ", ".join(rule.get("verbs") or ())
    if "nonResourceURLs" in rule:
        return f"{verbs} {rule['nonResourceURLs'][0]}"
    group = rule["apiGroups"][0]
    named = "".join(f" {name}" for name in rule.get("resourceNames") or ())
    return f"{verbs} {rule['resources'][0]}{'.' + group if group else ''}{named}"


def _builtin(kind: Kind, old: Object | None, what: str) -> StatusError | None:
    if old is None or not old.get("builtin"):
        return None
    return forbidden(kind.resource.group_resource, old["metadata"]["name"], f"it is built in and cannot be {what}")


def _same(kind: Kind, old: Object | None, new: Object, fields: Sequence[str]) -> StatusError | None:
    """Role and subject of a binding are immutable: create another binding instead."""
    if old is None:
        return None
    for field in fields:
        if old.get(field) != new.get(field):
            return _invalid(kind, new["metadata"]["name"], field, new.get(field), "field is immutable")
    if subject_of(old) != subject_of(new):
        return _invalid(kind, new["metadata"]["name"], "userName", new.get("userName"), "its subject is immutable")
    return None


def _subject(kind: Kind, binding: Object) -> StatusError | None:
    subject = subject_of(binding)
    if isinstance(subject, str):
        return _invalid(kind, binding["metadata"].get("name", ""), "userName", binding.get("userName"), subject)
    return None


def _invalid(kind: Kind, name: str, field: str, value: object, message: str) -> StatusError:
    return invalid(kind.group_kind, name, [invalid_value(field, value, message)])


def _content(obj: Object) -> Object:
    return {name: value for name, value in obj.items() if name not in {"metadata", "status"}}
