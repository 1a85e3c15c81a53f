"""What bindings in clusters and in projects have in common: they let their subject reach the cluster, give it roles
there, and keep a finalizer until nothing of that is left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from herder.api.capi.kinds import NAMESPACE
from herder.api.capi.names import is_deleting, labels_of
from herder.api.identity import projects, roles
from herder.api.identity.impersonators import IMPERSONATOR, impersonator
from herder.api.identity.projects import BY_PROJECT
from herder.api.identity.roles import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, FROM_TEMPLATE, OWNED_BY
from herder.api.machines.jobs import ROLE, ROLE_BINDING
from herder.api.management.clusters import belongs, is_anothers, is_connected, is_internal
from herder.api.management.kinds import (
    CLUSTER_BINDING,
    MANAGEMENT_CLUSTER,
    PROJECT_BINDING,
    PROVISIONING_CLUSTER,
    ROLE_TEMPLATE,
)
from herder.api.writing import delete, object_patch, owner_reference, ref, with_owner
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


def has_home(view: View, cluster: Object) -> bool:
    """Whether the namespace of a management Cluster is there, and is its own."""
    home = view.get(NAMESPACE, cluster["metadata"]["name"])
    return home is not None and not is_deleting(home) and not is_anothers(home, cluster)


def cluster_of(view: View, name: str) -> Object | None:
    """The management Cluster that an object in this namespace is about; None, where one of that name is there now, and
    the namespace is not its own."""
    cluster = view.get(MANAGEMENT_CLUSTER, name)
    home = view.get(NAMESPACE, view.namespace)
    return None if cluster is None or is_anothers(home, cluster) else cluster


def template_of(view: View) -> Callable[[str], Object | None]:
    return lambda name: view.get(ROLE_TEMPLATE, name)


# --- access to the cluster ------------------------------------------------------------------------------------------


def membership(view: View, binding: Object, cluster: Object, subject: Object, *, owner: bool) -> Iterable[Write]:
    cluster_id = cluster["metadata"]["name"]
    role = roles.membership_role(cluster_id, owner=owner)
    wanted = roles.membership_binding(binding, subject, role["metadata"]["name"])
    reference = owner_reference(MANAGEMENT_CLUSTER, cluster, controller=False)
    yield Apply(CLUSTER_ROLE, with_owner(role, reference), "what lets people reach the cluster")
    yield from _bound(view, CLUSTER_ROLE_BINDING, with_owner(wanted, reference))
    pairs = _pairs(view, cluster)
    workspaces = {pair["metadata"]["namespace"] for pair in pairs}
    for left in made_here(view, binding, ROLE_BINDING):
        if roles.is_membership(left) and left["metadata"]["namespace"] not in workspaces:
            yield delete(ROLE_BINDING, left, "the provisioning Cluster is not there any more")
    for pair in pairs:
        role = roles.pair_role(cluster_id, pair, owner=owner)
        reference = owner_reference(PROVISIONING_CLUSTER, pair, controller=False)
        yield Apply(ROLE, with_owner(role, reference), "what lets people see the cluster")
        yield from _bound(view, ROLE_BINDING, with_owner(roles.pair_binding(binding, subject, role), reference))


def _pairs(view: View, cluster: Object) -> list[Object]:
    """Its provisioning Clusters. What one says of itself in its status is no proof that it belongs to this cluster."""
    named = view.select(PROVISIONING_CLUSTER, index=(BY_CLUSTER, cluster["metadata"]["name"]))
    return [each for each in named if belongs(cluster, each["metadata"]["namespace"], each["metadata"]["name"])]


def _bound(view: View, kind: Kind, wanted: Object) -> Iterable[Write]:
    """What a binding refers to cannot be changed: one that refers to something else is replaced."""
    known = view.get(kind, wanted["metadata"]["name"], wanted["metadata"].get("namespace"))
    if known is not None and known["roleRef"] != wanted["roleRef"]:
        yield delete(kind, known, "it binds to another role")
    yield Apply(kind, wanted, "who may reach the cluster")


def made_here(view: View, binding: Object, kind: Kind) -> list[Object]:
    return view.select(kind, index=(OWNED_BY, roles.owner_label(binding)))


def deletions(view: View, binding: Object) -> tuple[Write, ...]:
    """Of all that it made here."""
    kinds = (CLUSTER_ROLE_BINDING, ROLE_BINDING)
    return tuple(delete(kind, each, "nobody has it") for kind in kinds for each in made_here(view, binding, kind))


# --- rights in the cluster ------------------------------------------------------------------------------------------


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
BINDINGS = Projection("template-binding", project=_binding_facts, indexes={"owner": by_owner})


def seen_roles(cluster_id: str, template: Object) -> Observe:
    focus = ("name", roles.template_role_name(template["metadata"]["name"]))
    return Observe(cluster_id, CLUSTER_ROLE, labels=FROM_TEMPLATE, projection=ROLES, focus=focus)


def seen_bindings(cluster_id: str, kind: Kind, binding: Object) -> Observe:
    focus = ("owner", roles.owner_label(binding))
    return Observe(cluster_id, kind, labels=OWNED_BY, projection=BINDINGS, focus=focus)


def brought(
    target: str, kind: Kind, role: Object | None, wanted: list[Object], seen: Iterable[Object], known: Iterable[Object]
) -> Iterable[Write]:
    """The writes that make the role and bindings `wanted` of what is `seen` and `known` there."""
    if role is not None and not any(each["rules"] == role["rules"] for each in seen):
        yield Apply(CLUSTER_ROLE, role, "the rights of the template", target=target)
    there, want = {_place(each): each for each in known}, {_place(each): each for each in wanted}
    for place, each in there.items():
        if place not in want or each["roleRef"] != want[place]["roleRef"]:
            yield gone(kind, each, target)
    for place, each in want.items():
        if there.get(place, {}).get("subjects") != each["subjects"]:
            yield Apply(kind, each, "who has these rights", target=target)


def gone(kind: Kind, binding: Object, target: str) -> Delete:
    return delete(kind, binding, "nobody has these rights by it", target=target)


def _place(obj: Object) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def away(cluster: Object, message: str = "") -> Decision:
    cluster_id = cluster["metadata"]["name"]
    return waiting(f"the agent of cluster {cluster_id} is not connected{message}", ref(MANAGEMENT_CLUSTER, cluster))


def silence(cluster_id: str, *seen: Observed | Unreachable | None) -> Decision:
    for each in seen:
        if isinstance(each, Unreachable):
            return waiting(f"cluster {cluster_id} does not answer: {each.reason}")
    return DONE


# --- the end --------------------------------------------------------------------------------------------------------


def _impersonator_facts(role: Object) -> Object:
    return {"metadata": {key: role["metadata"][key] for key in ("name", "uid")}}


IMPERSONATORS = Projection("impersonator-role", project=_impersonator_facts, indexes={"name": by_name})


def left_there(view: View, binding: Object, cluster: Object | None, kind: Kind) -> tuple[Decision, bool]:
    """What is to be done in the cluster so that nothing of the binding is left there, and whether that is all.

    With the last binding of a user goes what let the user be acted as there."""
    if cluster is None or is_deleting(cluster) or is_internal(cluster):
        return DONE, True  # what was made here goes with the rest
    if not is_connected(cluster):
        return away(cluster, ": the rights there end when it is back"), False
    cluster_id = cluster["metadata"]["name"]
    wishes = [seen_bindings(cluster_id, kind, binding), *_seen_impersonators(view, binding, cluster_id)]
    seen = [view.observed(wish) for wish in wishes]
    needs = Decision(observe=tuple(wishes))
    kinds = (kind, CLUSTER_ROLE)
    left: list[Write] = []
    for each, of in zip(seen, kinds, strict=False):
        if not isinstance(each, Observed):
            return needs + silence(cluster_id, *seen), False
        left += [gone(of, one, cluster_id) for one in each.objects]
    return needs + Decision(writes=tuple(left)), not left


def _seen_impersonators(view: View, binding: Object, cluster_id: str) -> Iterable[Observe]:
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
    reason = "what it makes in the cluster ends with it" if add else "nothing of it is left"
    return object_patch(kind, binding, {**binding, "metadata": wanted}, reason)


def has_finalizer(binding: Object, finalizer_: str) -> bool:
    return finalizer_ in (binding["metadata"].get("finalizers") or ())


def nothing_left(view: View, binding: Object, cluster: Object | None, there_kind: Kind) -> Decision:
    """A binding that cannot be understood gives nobody anything, also if it once did."""
    there, _ = left_there(view, binding, cluster, there_kind)
    return Decision(writes=deletions(view, binding)) + there


def removed(
    view: View, kind: Kind, binding: Object, cluster: Object | None, there_kind: Kind, finalizer_: str
) -> Decision:
    """What it gave ends, here and there, and then the binding itself."""
    if not has_finalizer(binding, finalizer_):
        return DONE
    here = deletions(view, binding)
    there, done = left_there(view, binding, cluster, there_kind)
    if here or not done:
        return Decision(writes=here) + there
    return Decision(writes=finalizer(kind, binding, finalizer_, add=False))


# --- what sets it off -----------------------------------------------------------------------------------------------


def every(_obj: Object) -> Iterable[str]:
    return ("",)


def user_key(cluster_id: str, user: str) -> str:
    return f"{cluster_id}/{user}"


def managed(provisioning: Object) -> Iterable[str]:
    """Indexer: the management Cluster by its own status, which the manager alone writes."""
    found = (provisioning.get("status") or {}).get("clusterName")
    return (found,) if found else ()


WATCHES = (
    Watches(ROLE_TEMPLATE, Indexed(ALL, every), changed("rules", "roleTemplateNames", "external", "context")),
    Watches(
        MANAGEMENT_CLUSTER,
        Indexed(BY_CLUSTER, by_name),
        changed("spec.internal", "spec.fleetWorkspaceName", "metadata.annotations", "metadata.deletionTimestamp"),
    ),
    Watches(CLUSTER_ROLE),
    Watches(CLUSTER_ROLE_BINDING, Indexed(OWNED_BY, by_owner), changed("subjects", "roleRef")),
    Watches(ROLE),
    Watches(ROLE_BINDING, Indexed(OWNED_BY, by_owner), changed("subjects", "roleRef")),
    Watches(PROVISIONING_CLUSTER, Indexed(BY_CLUSTER, managed), changed("status.clusterName")),
)


Indexer = Callable[[Object], Iterable[str]]


def _indexes(cluster_of: Indexer) -> dict[str, Indexer]:
    """Of a kind of bindings, each in the cluster that `cluster_of` tells."""

    def users(binding: Object) -> Iterable[str]:
        subject = roles.subject_of(binding)
        if isinstance(subject, dict) and subject["kind"] == "User":
            yield from (user_key(cluster_id, subject["name"]) for cluster_id in cluster_of(binding))

    def itself(binding: Object) -> Iterable[str]:
        return (roles.owner_label(binding),)

    return {ALL: every, BY_CLUSTER: cluster_of, BY_USER: users, OWNED_BY: itself}


def _cluster(binding: Object) -> Iterable[str]:
    return (binding["metadata"]["namespace"],)


def _cluster_of_project(binding: Object) -> Iterable[str]:
    """What its namespace tells, not what it says itself."""
    place = projects.placed(binding["metadata"]["namespace"])
    return (place.cluster,) if place else ()


def _project(binding: Object) -> Iterable[str]:
    place = projects.placed(binding["metadata"]["namespace"])
    return (place.id,) if place else ()


INDEXES: Mapping[Kind, Mapping[str, Indexer]] = {
    CLUSTER_BINDING: _indexes(_cluster),
    PROJECT_BINDING: {**_indexes(_cluster_of_project), BY_PROJECT: _project},
    NAMESPACE: {BY_PROJECT: projects.indexed},
    CLUSTER_ROLE_BINDING: {OWNED_BY: by_owner},
    ROLE_BINDING: {OWNED_BY: by_owner},
    PROVISIONING_CLUSTER: {BY_CLUSTER: managed},
}
