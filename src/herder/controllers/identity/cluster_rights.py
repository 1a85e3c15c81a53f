"""Shared parts of cluster and project bindings: cluster membership, downstream RBAC, and its removal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from herder.api.capi.kinds import NAMESPACE
from herder.api.capi.names import is_deleting, labels_of
from herder.api.identity import projects, roles
from herder.api.identity.impersonators import IMPERSONATOR, impersonator
from herder.api.identity.projects import BY_PROJECT
from herder.api.identity.roles import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, FROM_TEMPLATE, OWNED_BY
from herder.api.machines.jobs import ROLE, ROLE_BINDING
from herder.api.management.clusters import is_connected, is_internal, is_pair, namespace_belongs_to_other
from herder.api.management.kinds import (
    CLUSTER_BINDING,
    MANAGEMENT_CLUSTER,
    PROJECT_BINDING,
    PROVISIONING_CLUSTER,
    ROLE_TEMPLATE,
)
from herder.api.writes import delete, object_patch, owner_reference, ref, with_owner
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import (
    DONE,
    Apply,
    Decision,
    Delete,
    Observe,
    Projection,
    Write,
    waiting,
)
from herder.engine.runtime.handlers import Indexed, Watches, changed
from herder.engine.runtime.view import Observed, Unreachable, View

BY_CLUSTER, ALL, BY_USER = "cluster", "all", "user"
BY_OWNER = "owner"  # index of downstream bindings: the binding that they belong to


def has_namespace(view: View, cluster: Object) -> bool:
    """Whether the namespace of a management Cluster exists and belongs to it."""
    home = view.get(NAMESPACE, cluster["metadata"]["name"])
    return home is not None and not is_deleting(home) and not namespace_belongs_to_other(home, cluster)


def cluster_of(view: View, name: str) -> Object | None:
    """The management Cluster of an object in this namespace; None if the namespace belongs to an earlier cluster of
    that name."""
    cluster = view.get(MANAGEMENT_CLUSTER, name)
    home = view.get(NAMESPACE, view.namespace)
    return None if cluster is None or namespace_belongs_to_other(home, cluster) else cluster


def template_of(view: View) -> Callable[[str], Object | None]:
    return lambda name: view.get(ROLE_TEMPLATE, name)


# --- membership -----------------------------------------------------------------------------------------------------


def membership(view: View, binding: Object, cluster: Object, subject: Object, *, owner: bool) -> Iterable[Write]:
    cluster_id = cluster["metadata"]["name"]
    role = roles.membership_role(cluster_id, owner=owner)
    wanted = roles.membership_binding(binding, subject, role["metadata"]["name"])
    reference = owner_reference(MANAGEMENT_CLUSTER, cluster, controller=False)
    yield Apply(CLUSTER_ROLE, with_owner(role, reference), "role of cluster members")
    yield from _apply_binding(view, CLUSTER_ROLE_BINDING, with_owner(wanted, reference))
    provisioning_clusters = _provisioning_clusters(view, cluster)
    workspaces = {provisioning["metadata"]["namespace"] for provisioning in provisioning_clusters}
    for left in local_objects(view, binding, ROLE_BINDING):
        if roles.is_membership(left) and left["metadata"]["namespace"] not in workspaces:
            yield delete(ROLE_BINDING, left, "the provisioning Cluster does not exist anymore")
    for provisioning in provisioning_clusters:
        role = roles.provisioning_membership_role(cluster_id, provisioning, owner=owner)
        reference = owner_reference(PROVISIONING_CLUSTER, provisioning, controller=False)
        yield Apply(ROLE, with_owner(role, reference), "role to view the provisioning Cluster")
        yield from _apply_binding(
            view, ROLE_BINDING, with_owner(roles.provisioning_membership_binding(binding, subject, role), reference)
        )


def _provisioning_clusters(view: View, cluster: Object) -> list[Object]:
    """Provisioning Clusters of a management Cluster; their own status is no proof that they belong to it.

    Rights to one that is being deleted end before its name is free, and are not granted again.
    """
    named = view.select(PROVISIONING_CLUSTER, index=(BY_CLUSTER, cluster["metadata"]["name"]))
    return [each for each in named if not is_deleting(each) and is_pair(cluster, each)]


def _apply_binding(view: View, kind: Kind, wanted: Object) -> Iterable[Write]:
    """roleRef is immutable: a binding to another role is deleted and recreated."""
    known = view.get(kind, wanted["metadata"]["name"], wanted["metadata"].get("namespace"))
    if known is not None and known["roleRef"] != wanted["roleRef"]:
        yield delete(kind, known, "roleRef is immutable")
    yield Apply(kind, wanted, "bind the role of cluster members")


def local_objects(view: View, binding: Object, kind: Kind) -> list[Object]:
    return view.select(kind, index=(OWNED_BY, roles.owner_label(binding)))


def deletions(view: View, binding: Object) -> tuple[Write, ...]:
    """Deletes of all local objects of a binding."""
    kinds = (CLUSTER_ROLE_BINDING, ROLE_BINDING)
    return tuple(
        delete(kind, each, "revoke the binding") for kind in kinds for each in local_objects(view, binding, kind)
    )


# --- downstream RBAC ------------------------------------------------------------------------------------------------


def _role_facts(role: Object) -> Object:
    return {"metadata": {"name": role["metadata"]["name"]}, "rules": role.get("rules") or []}


def _binding_facts(binding: Object) -> Object:
    meta = binding["metadata"]
    known = {"name": meta["name"], "uid": meta["uid"], "labels": {OWNED_BY: labels_of(binding).get(OWNED_BY, "")}}
    known |= {"namespace": meta["namespace"]} if meta.get("namespace") else {}
    return {"metadata": known, "roleRef": binding["roleRef"], "subjects": binding.get("subjects") or []}


def by_name(obj: Object) -> Iterable[str]:
    return (obj["metadata"]["name"],)


def by_owner(obj: Object) -> Iterable[str]:
    label = labels_of(obj).get(OWNED_BY)
    return (label,) if label else ()


ROLES = Projection("template-role", project=_role_facts, indexes={"name": by_name})
BINDINGS = Projection("template-binding", project=_binding_facts, indexes={BY_OWNER: by_owner})


def roles_subscription(cluster_id: str, template: Object) -> Observe:
    focus = ("name", roles.template_role_name(template["metadata"]["name"]))
    return Observe(cluster_id, CLUSTER_ROLE, labels=FROM_TEMPLATE, projection=ROLES, focus=focus)


def bindings_subscription(cluster_id: str, kind: Kind, binding: Object) -> Observe:
    focus = (BY_OWNER, roles.owner_label(binding))
    return Observe(cluster_id, kind, labels=OWNED_BY, projection=BINDINGS, focus=focus)


def binding_writes(
    target: str, kind: Kind, role: Object | None, wanted: list[Object], seen: Iterable[Object], known: Iterable[Object]
) -> Iterable[Write]:
    """Writes that turn the `seen` roles and `known` bindings into the wanted ones."""
    if role is not None and not any(each["rules"] == role["rules"] for each in seen):
        yield Apply(CLUSTER_ROLE, role, "rules of the role template", target=target)
    downstream, want = {_place(each): each for each in known}, {_place(each): each for each in wanted}
    for place, each in downstream.items():
        if place not in want or each["roleRef"] != want[place]["roleRef"]:
            yield revoke(kind, each, target)
    for place, each in want.items():
        if downstream.get(place, {}).get("subjects") != each["subjects"]:
            yield Apply(kind, each, "bind the role template", target=target)


def revoke(kind: Kind, binding: Object, target: str) -> Delete:
    return delete(kind, binding, "revoke the rights of the binding", target=target)


def _place(obj: Object) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def agent_disconnected(cluster: Object, message: str = "") -> Decision:
    cluster_id = cluster["metadata"]["name"]
    return waiting(f"the agent of cluster {cluster_id} is not connected{message}", ref(MANAGEMENT_CLUSTER, cluster))


def unreachable(cluster_id: str, *seen: Observed | Unreachable | None) -> Decision:
    for each in seen:
        if isinstance(each, Unreachable):
            return waiting(f"cluster {cluster_id} does not answer: {each.reason}")
    return DONE


# --- removal --------------------------------------------------------------------------------------------------------


def _impersonator_facts(role: Object) -> Object:
    return {"metadata": {key: role["metadata"][key] for key in ("name", "uid")}}


IMPERSONATORS = Projection("impersonator-role", project=_impersonator_facts, indexes={"name": by_name})


def revoke_downstream(view: View, binding: Object, cluster: Object | None, kind: Kind) -> tuple[Decision, bool]:
    """Deletes of the binding's objects in the cluster, and whether none are left.

    With the last binding of a user, the user's impersonation role is deleted too.
    """
    if cluster is None or is_deleting(cluster) or is_internal(cluster):
        return DONE, True  # Local objects are deleted by the caller.
    if not is_connected(cluster):
        return agent_disconnected(cluster, "; its rights are revoked when it reconnects"), False
    cluster_id = cluster["metadata"]["name"]
    subscriptions = [
        bindings_subscription(cluster_id, kind, binding),
        *_impersonator_subscriptions(view, binding, cluster_id),
    ]
    seen = [view.observed(subscription) for subscription in subscriptions]
    needs = Decision(observe=tuple(subscriptions))
    kinds = (kind, CLUSTER_ROLE)
    left: list[Write] = []
    for each, of in zip(seen, kinds, strict=False):
        if not isinstance(each, Observed):
            return needs + unreachable(cluster_id, *seen), False
        left += [revoke(of, one, cluster_id) for one in each.objects]
    return needs + Decision(writes=tuple(left)), not left


def _impersonator_subscriptions(view: View, binding: Object, cluster_id: str) -> Iterable[Observe]:
    subject = roles.subject_of(binding)
    if isinstance(subject, str) or subject["kind"] != "User" or not is_deleting(binding):
        return
    of_user = (BY_USER, user_key(cluster_id, subject["name"]))
    others = (each for kind in (CLUSTER_BINDING, PROJECT_BINDING) for each in view.select(kind, index=of_user))
    if all(is_deleting(each) for each in others):
        focus = ("name", impersonator(subject["name"]))
        yield Observe(cluster_id, CLUSTER_ROLE, labels=IMPERSONATOR, projection=IMPERSONATORS, focus=focus)


def finalizer(kind: Kind, binding: Object, finalizer_: str, *, add: bool) -> tuple[Write, ...]:
    others = [each for each in binding["metadata"].get("finalizers") or () if each != finalizer_]
    wanted = {**binding["metadata"], "finalizers": [*others, finalizer_] if add else others}
    reason = "add the finalizer to revoke its rights" if add else "its rights are revoked"
    return object_patch(kind, binding, {**binding, "metadata": wanted}, reason)


def has_finalizer(binding: Object, finalizer_: str) -> bool:
    return finalizer_ in (binding["metadata"].get("finalizers") or ())


def revoke_all(view: View, binding: Object, cluster: Object | None, downstream_kind: Kind) -> Decision:
    """An invalid binding grants nothing, even if it did before."""
    downstream, _ = revoke_downstream(view, binding, cluster, downstream_kind)
    return Decision(writes=deletions(view, binding)) + downstream


def revoke_deleted(view: View, cluster: Object | None, downstream_kind: Kind) -> Decision:
    """Revoke everything that a deleted binding granted.

    Users who may edit a binding can remove its finalizer; then nothing keeps the binding until its rights have ended.
    In a cluster that is not connected, `leftover_bindings` revokes them later.
    """
    deleted = {"metadata": {"namespace": view.namespace, "name": view.name}}
    here = Decision(writes=deletions(view, deleted))
    if cluster is None or not is_connected(cluster):
        return here
    downstream, done = revoke_downstream(view, deleted, cluster, downstream_kind)
    return here if done else here + downstream


def finalize(
    view: View, kind: Kind, binding: Object, cluster: Object | None, downstream_kind: Kind, finalizer_: str
) -> Decision:
    """Revoke the rights everywhere, then remove the finalizer."""
    if not has_finalizer(binding, finalizer_):
        return DONE
    here = deletions(view, binding)
    downstream, done = revoke_downstream(view, binding, cluster, downstream_kind)
    if here or not done:
        return Decision(writes=here) + downstream
    return Decision(writes=finalizer(kind, binding, finalizer_, add=False))


# --- watches --------------------------------------------------------------------------------------------------------


def all_key(_obj: Object) -> Iterable[str]:
    return ("",)


def user_key(cluster_id: str, user: str) -> str:
    return f"{cluster_id}/{user}"


def by_management_cluster(provisioning: Object) -> Iterable[str]:
    """Indexer: the management Cluster in the status, which only the manager writes."""
    found = (provisioning.get("status") or {}).get("clusterName")
    return (found,) if found else ()


def by_membership(role: Object) -> Iterable[str]:
    """Indexer: the cluster of a role of its members or owners, which is restored if somebody deletes or changes it."""
    found = roles.cluster_of_membership(role)
    return (found,) if found else ()


WATCHES = (
    Watches(ROLE_TEMPLATE, Indexed(ALL, all_key), changed("rules", "roleTemplateNames", "external", "context")),
    Watches(
        MANAGEMENT_CLUSTER,
        Indexed(BY_CLUSTER, by_name),
        changed("spec.internal", "spec.fleetWorkspaceName", "metadata.annotations", "metadata.deletionTimestamp"),
    ),
    Watches(CLUSTER_ROLE, Indexed(BY_CLUSTER, by_membership), changed("rules")),
    Watches(CLUSTER_ROLE_BINDING, Indexed(OWNED_BY, by_owner), changed("subjects", "roleRef")),
    Watches(ROLE, Indexed(BY_CLUSTER, by_membership), changed("rules")),
    Watches(ROLE_BINDING, Indexed(OWNED_BY, by_owner), changed("subjects", "roleRef")),
    Watches(PROVISIONING_CLUSTER, Indexed(BY_CLUSTER, by_management_cluster), changed("status.clusterName")),
)


Indexer = Callable[[Object], Iterable[str]]


def _indexes(cluster_of: Indexer) -> dict[str, Indexer]:
    """Indexes of a kind of bindings, whose cluster `cluster_of` returns."""

    def users(binding: Object) -> Iterable[str]:
        subject = roles.subject_of(binding)
        if isinstance(subject, dict) and subject["kind"] == "User":
            yield from (user_key(cluster_id, subject["name"]) for cluster_id in cluster_of(binding))

    def owner_key(binding: Object) -> Iterable[str]:
        return (roles.owner_label(binding),)

    return {ALL: all_key, BY_CLUSTER: cluster_of, BY_USER: users, OWNED_BY: owner_key}


def _cluster(binding: Object) -> Iterable[str]:
    return (binding["metadata"]["namespace"],)


def _cluster_of_project(binding: Object) -> Iterable[str]:
    """From the namespace, not from the binding's own fields."""
    place = projects.project_key_of_namespace(binding["metadata"]["namespace"])
    return (place.cluster,) if place else ()


def _project(binding: Object) -> Iterable[str]:
    place = projects.project_key_of_namespace(binding["metadata"]["namespace"])
    return (place.id,) if place else ()


INDEXES: Mapping[Kind, Mapping[str, Indexer]] = {
    CLUSTER_BINDING: _indexes(_cluster),
    PROJECT_BINDING: {**_indexes(_cluster_of_project), BY_PROJECT: _project},
    NAMESPACE: {BY_PROJECT: projects.indexed},
    CLUSTER_ROLE_BINDING: {OWNED_BY: by_owner},
    ROLE_BINDING: {OWNED_BY: by_owner},
    PROVISIONING_CLUSTER: {BY_CLUSTER: by_management_cluster},
}
