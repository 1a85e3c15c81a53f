"""GlobalRoleBindings: RBAC bindings here, and a ClusterRoleTemplateBinding per cluster and inherited template."""

from __future__ import annotations

from collections.abc import Iterable

from herder.api.capi.kinds import NAMESPACE
from herder.api.capi.names import is_deleting
from herder.api.identity import roles
from herder.api.identity.roles import CLUSTER_ROLE_BINDING, RBAC
from herder.api.machines.jobs import ROLE, ROLE_BINDING
from herder.api.machines.names import safe_concat
from herder.api.management.clusters import is_internal
from herder.api.management.kinds import CLUSTER_BINDING, GLOBAL_ROLE, GLOBAL_ROLE_BINDING, MANAGEMENT_CLUSTER
from herder.api.writes import delete, owner_reference, ref, with_owner
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import Apply, Create, Decision, Write, waiting
from herder.engine.runtime.handlers import Indexed, Watches, changed, owner
from herder.engine.runtime.view import View

BY_ROLE, BY_BINDING, ALL = "global-role", "global-role-binding", "all"


def reconcile(view: View) -> Decision:
    binding = view.get(GLOBAL_ROLE_BINDING, view.name)
    if binding is None or is_deleting(binding):
        return _revoke(view)
    subject = roles.subject_of(binding)
    if isinstance(subject, str):
        return _revoke_owned(view, binding) + waiting(subject, ref(GLOBAL_ROLE_BINDING, binding))
    role = view.get(GLOBAL_ROLE, binding["globalRoleName"])
    if role is None:
        message = f"GlobalRole {binding['globalRoleName']} does not exist"
        return _revoke_owned(view, binding) + waiting(message, ref(GLOBAL_ROLE_BINDING, binding))
    return Decision(writes=(*_local_bindings(view, binding, role, subject), *_cluster_bindings(view, binding, role)))


def _revoke(view: View) -> Decision:
    """Delete the bindings now; the garbage collector would do so only after everything else in its queue."""
    kinds, index = (CLUSTER_ROLE_BINDING, ROLE_BINDING, CLUSTER_BINDING), (BY_BINDING, view.name)
    left = [(kind, each) for kind in kinds for each in view.select(kind, index=index) if not is_deleting(each)]
    return Decision(writes=tuple(delete(kind, each, "the GlobalRoleBinding is deleted") for kind, each in left))


def _revoke_owned(view: View, binding: Object) -> Decision:
    """A binding without a role or subject grants nothing."""
    uid = binding["metadata"]["uid"]
    kinds = (CLUSTER_ROLE_BINDING, ROLE_BINDING, CLUSTER_BINDING)
    left = [
        delete(kind, each, "the GlobalRoleBinding has no valid role or subject")
        for kind in kinds
        for each in view.owned(kind, uid)
    ]
    return Decision(writes=tuple(left))


# --- management cluster ---------------------------------------------------------------------------------------------


def _local_bindings(view: View, binding: Object, role: Object, subject: Object) -> Iterable[Write]:
    reference = owner_reference(GLOBAL_ROLE_BINDING, binding, controller=True)
    name, target = roles.global_binding_name(view.name), roles.global_role_name(role["metadata"]["name"])
    cluster_wide = roles.cluster_role_binding(name, target, subject)
    yield from _apply_binding(view, CLUSTER_ROLE_BINDING, with_owner(cluster_wide, reference))
    places = sorted(role.get("namespacedRules") or {})
    for place in places:
        yield from _apply_binding(
            view, ROLE_BINDING, with_owner(_in_namespace(name, place, target, subject), reference)
        )
    for left in view.owned(ROLE_BINDING, binding["metadata"]["uid"]):
        if left["metadata"]["namespace"] not in places:
            yield delete(ROLE_BINDING, left, "the role has no rules for this namespace anymore")


def _apply_binding(view: View, kind: Kind, wanted: Object) -> Iterable[Write]:
    """roleRef is immutable: a binding to another role is deleted and recreated."""
    meta = wanted["metadata"]
    known = view.get(kind, meta["name"], meta.get("namespace"))
    if known is not None and known.get("roleRef") != wanted["roleRef"]:
        yield delete(kind, known, "roleRef is immutable")
    yield Apply(kind, wanted, "bind the global role")


def _in_namespace(name: str, namespace: str, role: str, subject: Object) -> Object:
    return {
        "apiVersion": ROLE_BINDING.api_version,
        "kind": ROLE_BINDING.kind,
        "metadata": {"name": name, "namespace": namespace},
        "roleRef": {"apiGroup": RBAC, "kind": ROLE.kind, "name": role},
        "subjects": [subject],
    }


# --- managed clusters -----------------------------------------------------------------------------------------------


def _cluster_bindings(view: View, binding: Object, role: Object) -> Iterable[Write]:
    reference = owner_reference(GLOBAL_ROLE_BINDING, binding, controller=True)
    known = {_place(each): each for each in view.owned(CLUSTER_BINDING, binding["metadata"]["uid"])}
    wanted = {
        _place(each): each
        for cluster in view.select(MANAGEMENT_CLUSTER)
        if _has_namespace(view, cluster)
        for template in role.get("inheritedClusterRoles") or ()
        for each in [_cluster_binding(binding, cluster["metadata"]["name"], template)]
    }
    for place, each in known.items():
        if not is_deleting(each) and _granted(each) != _granted(wanted.get(place, {})):
            yield delete(CLUSTER_BINDING, each, "the role no longer inherits this cluster role")
    for place, each in wanted.items():
        if place not in known:
            yield from _create(view, with_owner(each, reference))


def _create(view: View, wanted: Object) -> Iterable[Write]:
    """Users who manage the members of one cluster can take the name. That must not hold up all other clusters."""
    meta = wanted["metadata"]
    taken = view.get(CLUSTER_BINDING, meta["name"], meta["namespace"])
    if taken is None:
        yield Create(CLUSTER_BINDING, wanted, "bind the inherited cluster role")
    elif not is_deleting(taken) and not list(_bindings_of(taken)):
        yield delete(CLUSTER_BINDING, taken, "it has the name of a global role's binding")


def _granted(binding: Object) -> Object:
    return {field: binding.get(field) for field in ("clusterName", "roleTemplateName", *roles.SUBJECT_FIELDS)}


def _has_namespace(view: View, cluster: Object) -> bool:
    if is_internal(cluster) or is_deleting(cluster):
        return False
    namespace = view.get(NAMESPACE, cluster["metadata"]["name"])
    return namespace is not None and not is_deleting(namespace)


def _cluster_binding(binding: Object, cluster: str, template: str) -> Object:
    who = {
        field: binding[field] for field in ("userName", "userPrincipalName", "groupPrincipalName") if binding.get(field)
    }
    return {
        "apiVersion": CLUSTER_BINDING.api_version,
        "kind": CLUSTER_BINDING.kind,
        "metadata": {"name": safe_concat("grb", binding["metadata"]["name"], template), "namespace": cluster},
        "clusterName": cluster,
        "roleTemplateName": template,
        **who,
    }


def _place(obj: Object) -> tuple[str, str]:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]


# --- watches --------------------------------------------------------------------------------------------------------


def _bindings_of(obj: Object) -> Iterable[str]:
    return (key.name for key in owner(GLOBAL_ROLE_BINDING)(obj))


def _role_of(binding: Object) -> Iterable[str]:
    return (binding.get("globalRoleName") or "",)


def _all_key(_obj: Object) -> Iterable[str]:
    return ("",)


def _name(obj: Object) -> Iterable[str]:
    return (obj["metadata"]["name"],)


CONTROLLER = Controller(
    name="global-role-binding",
    kind=GLOBAL_ROLE_BINDING,
    reconcile=reconcile,
    watches=(
        Watches(GLOBAL_ROLE, Indexed(BY_ROLE, _name), changed("namespacedRules", "inheritedClusterRoles")),
        Watches(CLUSTER_ROLE_BINDING, owner(GLOBAL_ROLE_BINDING), changed("subjects", "roleRef")),
        Watches(ROLE_BINDING, owner(GLOBAL_ROLE_BINDING), changed("subjects", "roleRef")),
        Watches(CLUSTER_BINDING, owner(GLOBAL_ROLE_BINDING), changed("metadata.deletionTimestamp")),
        Watches(MANAGEMENT_CLUSTER, Indexed(ALL, _all_key), changed("metadata.deletionTimestamp")),
        Watches(NAMESPACE, Indexed(ALL, _all_key), changed("metadata.deletionTimestamp")),
    ),
    predicate=changed(
        "globalRoleName", "userName", "userPrincipalName", "groupPrincipalName", "metadata.deletionTimestamp"
    ),
    indexes={
        GLOBAL_ROLE_BINDING: {BY_ROLE: _role_of, ALL: _all_key},
        **{kind: {BY_BINDING: _bindings_of} for kind in (CLUSTER_ROLE_BINDING, ROLE_BINDING, CLUSTER_BINDING)},
    },
    pace=0.1,  # Namespaces and clusters appear in bursts.
)
