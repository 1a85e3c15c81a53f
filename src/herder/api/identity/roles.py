"""Translate GlobalRoles, RoleTemplates and their bindings to plain RBAC."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable

from herder.api.identity.builtin_roles import CLUSTER, EVERYTHING, OWNER, PROJECT
from herder.api.identity.names import EVERYONE, LOCAL_PRINCIPAL
from herder.api.machines.jobs import ROLE, ROLE_BINDING
from herder.api.management.kinds import GROUP, MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.engine.meta.kinds import Kind, Object

RBAC = "rbac.authorization.k8s.io"
CLUSTER_ROLE = Kind(RBAC, "v1", "ClusterRole", "clusterroles", namespaced=False)
CLUSTER_ROLE_BINDING = Kind(RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False)

# on bindings: namespace_name of the binding they are derived from
OWNED_BY = "authz.cluster.cattle.io/rtb-owner-updated"
FROM_TEMPLATE = "authz.cluster.cattle.io/role-template"  # on ClusterRoles
_LONGEST_LABEL = 63
_MEMBERSHIP = "-membership"
_MEMBER_VERBS = ["get"]
# Without create: API servers authorize a POST to the path of a custom object by the name in the path, but create the
# object in the body.
_OWNER_VERBS = ["delete", "get", "list", "own", "patch", "update", "watch"]

Templates = Callable[[str], Object | None]


# --- subjects -------------------------------------------------------------------------------------------------------

SUBJECT_FIELDS = ("userName", "userPrincipalName", "groupName", "groupPrincipalName")


def subject_of(binding: Object) -> Object | str:
    """Return the RBAC subject of a binding, or what is wrong with it. System users and groups cannot be subjects."""
    given = {field: binding[field] for field in SUBJECT_FIELDS if binding.get(field)}
    if len(given) != 1:
        return f"exactly one of {', '.join(SUBJECT_FIELDS)} must be set"
    ((field, name),) = given.items()
    is_group = field.startswith("group")
    if field == "userPrincipalName":
        if not name.startswith(LOCAL_PRINCIPAL):
            return f'userPrincipalName: must begin with "{LOCAL_PRINCIPAL}"; only the local provider is enabled'
        name = name.removeprefix(LOCAL_PRINCIPAL)
    if name.startswith("system:") and not (is_group and name in EVERYONE):
        return f'{field}: "{name}" is reserved for Kubernetes'
    return {"apiGroup": RBAC, "kind": "Group" if is_group else "User", "name": name}


# --- rules ----------------------------------------------------------------------------------------------------------


def inherited(template: Object, templates: Templates) -> list[Object]:
    """Return the template and all it inherits from, each once; tolerates cycles."""
    found: dict[str, Object] = {}
    todo = [template]
    while todo:
        next_ = todo.pop()
        if next_["metadata"]["name"] not in found:
            found[next_["metadata"]["name"]] = next_
            todo += [known for name in next_.get("roleTemplateNames") or () if (known := templates(name))]
    return list(found.values())


def is_owner(template: Object, templates: Templates) -> bool:
    return any(each["metadata"]["name"] == OWNER for each in inherited(template, templates))


def template_rules(template: Object, templates: Templates) -> list[Object]:
    """Return own and inherited rules, except those of external roles."""
    own = (each for each in inherited(template, templates) if not each.get("external"))
    return [rule for each in own for rule in each.get("rules") or ()]


def granted_rules(template: Object, templates: Templates) -> list[Object]:
    """Return all rules a subject may get; an external role without declared rules may contain everything."""
    return template_rules(template, templates) + _external_rules(template, templates, EVERYTHING)


def held_rules(template: Object, templates: Templates) -> list[Object]:
    """Return the rules a subject has for certain."""
    return template_rules(template, templates) + _external_rules(template, templates, [])


def _external_rules(template: Object, templates: Templates, unknown: list[Object]) -> list[Object]:
    external = (each for each in inherited(template, templates) if each.get("external"))
    return [rule for each in external for rule in each.get("externalRules") or unknown]


def unusable(template: Object, templates: Templates, context: str = CLUSTER) -> str:
    """Return why it cannot be bound in a cluster or project; "" if it can."""
    if context == CLUSTER and template.get("context") == PROJECT:
        return f"RoleTemplate {template['metadata']['name']} is for projects, not for whole clusters"
    if context == PROJECT and template.get("context") != PROJECT:
        return f"RoleTemplate {template['metadata']['name']} is for whole clusters, not for projects"
    for each in inherited(template, templates):
        missing = [name for name in each.get("roleTemplateNames") or () if templates(name) is None]
        if missing:
            return f"RoleTemplate {each['metadata']['name']} inherits from {missing[0]}, which does not exist"
    return ""


# --- in the manager's own cluster -----------------------------------------------------------------------------------


def global_role_name(role: str) -> str:
    return f"cattle-globalrole-{role}"


def global_binding_name(binding: str) -> str:
    return f"cattle-globalrolebinding-{binding}"


def membership_role(cluster_id: str, *, owner: bool) -> Object:
    """Return the role with access to a management Cluster: `get` on it means access to the cluster."""
    rule = {
        "apiGroups": [GROUP],
        "resources": [MANAGEMENT_CLUSTER.plural],
        "resourceNames": [cluster_id],
        "verbs": _OWNER_VERBS if owner else _MEMBER_VERBS,
    }
    return cluster_role(_membership(cluster_id, owner=owner), [rule])


def membership_binding(binding: Object, subject: Object, role: str) -> Object:
    return cluster_role_binding(_membership_name(binding), role, subject, {OWNED_BY: owner_label(binding)})


def provisioning_membership_role(cluster_id: str, provisioning: Object, *, owner: bool) -> Object:
    """Return the same for the provisioning Cluster."""
    meta = provisioning["metadata"]
    rule = {
        "apiGroups": [PROVISIONING_CLUSTER.group],
        "resources": [PROVISIONING_CLUSTER.plural],
        "resourceNames": [meta["name"]],
        "verbs": _OWNER_VERBS if owner else _MEMBER_VERBS,
    }
    name = {"name": _membership(cluster_id, owner=owner), "namespace": meta["namespace"]}
    return {"apiVersion": ROLE.api_version, "kind": ROLE.kind, "metadata": name, "rules": [rule]}


def provisioning_membership_binding(binding: Object, subject: Object, role: Object) -> Object:
    meta = {
        "name": _membership_name(binding),
        "namespace": role["metadata"]["namespace"],
        "labels": {OWNED_BY: owner_label(binding)},
    }
    return _role_binding(meta, ROLE, role["metadata"]["name"], subject)


def is_membership(binding: Object) -> bool:
    """Whether a binding grants access to a cluster, rather than permissions in it."""
    return str(binding["metadata"]["name"]).endswith(_MEMBERSHIP)


def _membership(cluster_id: str, *, owner: bool) -> str:
    return f"{cluster_id}-cluster{'owner' if owner else 'member'}"


def cluster_of_membership(role: Object) -> str:
    """The cluster whose members or owners have this role; empty for another role."""
    found = re.fullmatch(r"(.+)-cluster(owner|member)", role["metadata"]["name"])
    return found[1] if found else ""


def _membership_name(binding: Object) -> str:
    return f"{_prefix(binding)}-{_digest(_place(binding))}{_MEMBERSHIP}"


def _prefix(binding: Object) -> str:
    return "prtb" if "projectName" in binding else "crtb"


# --- in the managed cluster -----------------------------------------------------------------------------------------


def template_role_name(template: str) -> str:
    """Return the ClusterRole's name; prefixed, so that it never equals that of an external role."""
    return f"cattle-roletemplate-{template}"


def downstream_roles(template: Object, templates: Templates) -> tuple[Object | None, list[str]]:
    """Return the ClusterRole with the template's rules, if any, and the names of all roles to bind."""
    rules = template_rules(template, templates)
    name = template_role_name(template["metadata"]["name"])
    role = cluster_role(name, rules, {FROM_TEMPLATE: _label(template["metadata"]["name"])}) if rules else None
    external = [each["metadata"]["name"] for each in inherited(template, templates) if each.get("external")]
    return role, ([name] if role else []) + sorted(external)


def downstream_bindings(binding: Object, subject: Object, roles: Iterable[str]) -> list[Object]:
    labels = {OWNED_BY: owner_label(binding)}
    place = _place(binding)
    return [cluster_role_binding(f"crtb-{_digest(f'{place}/{role}')}", role, subject, labels) for role in roles]


def project_bindings(binding: Object, subject: Object, roles: Iterable[str], namespaces: Iterable[str]) -> list[Object]:
    """Return bindings with the same permissions in these namespaces only."""
    names = {role: f"prtb-{_digest(f'{_place(binding)}/{role}')}" for role in roles}
    labels = {OWNED_BY: owner_label(binding)}
    return [
        _role_binding({"name": name, "namespace": namespace, "labels": labels}, CLUSTER_ROLE, role, subject)
        for namespace in namespaces
        for role, name in names.items()
    ]


def owner_label(binding: Object) -> str:
    return _label(_place(binding).replace("/", "_"))


def _place(binding: Object) -> str:
    return f"{binding['metadata']['namespace']}/{binding['metadata']['name']}"


def _label(value: str) -> str:
    return value if len(value) <= _LONGEST_LABEL else _digest(value)


def _digest(text: str) -> str:
    """Return a digest that is long enough against collisions: joined or truncated names could be made equal."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


# --- objects --------------------------------------------------------------------------------------------------------


def cluster_role(name: str, rules: list[Object], labels: dict[str, str] | None = None) -> Object:
    meta = {"name": name, **({"labels": labels} if labels else {})}
    return {"apiVersion": CLUSTER_ROLE.api_version, "kind": CLUSTER_ROLE.kind, "metadata": meta, "rules": rules}


def cluster_role_binding(name: str, role: str, subject: Object, labels: dict[str, str] | None = None) -> Object:
    return {
        "apiVersion": CLUSTER_ROLE_BINDING.api_version,
        "kind": CLUSTER_ROLE_BINDING.kind,
        "metadata": {"name": name, **({"labels": labels} if labels else {})},
        "roleRef": {"apiGroup": RBAC, "kind": CLUSTER_ROLE.kind, "name": role},
        "subjects": [subject],
    }


def _role_binding(meta: Object, kind: Kind, role: str, subject: Object) -> Object:
    return {
        "apiVersion": ROLE_BINDING.api_version,
        "kind": ROLE_BINDING.kind,
        "metadata": meta,
        "roleRef": {"apiGroup": RBAC, "kind": kind.kind, "name": role},
        "subjects": [subject],
    }
