"""Guard of observe-only clusters: deny everything that could change machines, clusters or downstream objects.

It allows a list of harmless actions, instead of denying a list of dangerous ones: an action that is new here is denied.
Unlike other guards, it does not end the execution of a decision, so the status of the reconciled object is still
written.
"""

from __future__ import annotations

from collections.abc import Iterator

from herder.api import observe_only
from herder.api.capi.kinds import CLUSTER
from herder.api.capi.names import CLUSTER_NAME, cluster_key, is_deleting, labels_of
from herder.api.inmemory.names import SERVE_WORKLOAD
from herder.api.machines.archive import CONFIG_MAP
from herder.api.management.kinds import (
    CLUSTER_BINDING,
    MANAGEMENT_CLUSTER,
    PROJECT_BINDING,
    PROVISIONING_CLUSTER,
    ROLE_TEMPLATE,
)
from herder.api.management.names import MAKE_KUBECONFIG
from herder.api.rke import names
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Apply, Create, Delete, Effect, Patch, Refusal, Update
from herder.engine.runtime.executor import Action, Reconciled
from herder.engine.runtime.view import UndeclaredKind, View

READING = frozenset(
    {names.READ_OBJECT, names.READ_REQUEST, "read-secret", "list-names", "find", "pod-log", "driver-flags"}
)
"""Effects that only read."""
SERVING = frozenset({SERVE_WORKLOAD, MAKE_KUBECONFIG})
"""Effects without which users cannot reach a cluster: the manager serves the API of in-memory clusters, and issues the
tokens for its own gateway."""
_RBAC = "rbac.authorization.k8s.io"
_BINDINGS = (CLUSTER_BINDING, PROJECT_BINDING)


def deny_while_observe_only(act: Action, view: View, reconciled: Reconciled) -> Refusal | None:
    """Deny an action on an observe-only cluster: that of the reconciled object, of the written object or the target."""
    if not _exists_any(view) or _is_harmless(act, view, reconciled):
        return None
    for cluster in _clusters(act, view, reconciled):
        mark = _mark(view, cluster)
        if mark is not None:
            reason = f"{act.reason}: {observe_only.message(_shown(view, cluster), mark)}"
            return Refusal(observe_only.GUARD, reason)
    return None


def _is_harmless(act: Action, view: View, reconciled: Reconciled) -> bool:
    if isinstance(act, Effect):
        return act.performer in READING | SERVING
    kind, namespace, name = _subject(act)
    if reconciled.kind in _BINDINGS and _is_revoked(view, reconciled.kind):
        return _revokes(act, kind) or (kind, namespace, name) == (reconciled.kind, view.namespace, view.name)
    if act.target:
        return False
    if kind.group == _RBAC or kind.group_kind == CONFIG_MAP.group_kind:
        return True  # rights of users at the manager, and logs
    is_own = kind == reconciled.kind and (namespace, name) == (view.namespace, view.name)
    return is_own and not isinstance(act, (Create, Delete)) and act.subresource == "status"


def _is_revoked(view: View, kind: Kind) -> bool:
    """Whether a user has deleted the binding, or the RoleTemplate that it names.

    Without its finalizer, the binding is gone at once. Narrower rules of a template are no sign of that: they can be
    older than those in the cluster.
    """
    binding = view.get(kind, view.name)
    if binding is None or is_deleting(binding):
        return True
    try:
        return view.get(ROLE_TEMPLATE, str(binding.get("roleTemplateName") or "")) is None
    except UndeclaredKind:
        return False


def _revokes(act: Action, kind: Kind) -> bool:
    """Whether it only ends rights, at the manager or in the cluster. A user has requested it after the restore, or the
    mark would let former owners keep their rights in the cluster."""
    return isinstance(act, Delete) and kind.group == _RBAC


def _subject(act: Apply | Create | Update | Patch | Delete) -> tuple[Kind, str, str]:
    if isinstance(act, (Patch, Delete)):
        return act.ref.kind, act.ref.namespace, act.ref.name
    meta = act.obj["metadata"]
    return act.kind, meta.get("namespace", ""), meta.get("name", "")


# --- clusters of an action --------------------------------------------------------------------------------------------


def _clusters(act: Action, view: View, reconciled: Reconciled) -> Iterator[str]:
    """Yield the clusters that the action is about, each as NAMESPACE/NAME or as ID of the management Cluster."""
    yield reconciled.cluster
    if isinstance(act, Effect):
        cluster = act.arguments.get("cluster")
        if isinstance(cluster, str):
            yield cluster
        return
    yield act.target
    kind, namespace, name = _subject(act)
    if kind in (CLUSTER, PROVISIONING_CLUSTER):
        yield cluster_key(namespace, name)
    elif kind == MANAGEMENT_CLUSTER:
        yield name
    obj = act.obj if isinstance(act, (Apply, Create, Update)) else _get(view, kind, name, namespace)
    if obj is not None:
        yield from (cluster_key(namespace, each) for each in _cluster_names(obj))


def _cluster_names(obj: Object) -> Iterator[str]:
    labels = labels_of(obj)
    yield from (labels[label] for label in (CLUSTER_NAME, names.CLUSTER_NAME) if labels.get(label))
    spec = obj.get("spec")
    if isinstance(spec, dict) and isinstance(spec.get("clusterName"), str):
        yield spec["clusterName"]


def _mark(view: View, cluster: str) -> str | None:
    if not cluster:
        return None
    namespace, slash, name = cluster.partition("/")
    if not slash:
        return observe_only.mark_of(_get(view, MANAGEMENT_CLUSTER, cluster, ""))
    marks = (observe_only.mark_of(_get(view, kind, name, namespace)) for kind in (PROVISIONING_CLUSTER, CLUSTER))
    return next((mark for mark in marks if mark is not None), None)


def _shown(view: View, cluster: str) -> str:
    """Return the name that users know: management Clusters have a generated one."""
    if "/" in cluster:
        return cluster.partition("/")[2]
    management = _get(view, MANAGEMENT_CLUSTER, cluster, "") or {}
    return str((management.get("spec") or {}).get("displayName") or cluster)


def _exists_any(view: View) -> bool:
    return any(_count(view, kind) for kind in observe_only.MARKED_KINDS)


def _count(view: View, kind: Kind) -> int:
    try:
        return view.count(kind, (observe_only.INDEX, observe_only.MARKED))
    except UndeclaredKind:
        return 0  # not watched: this process has no controller of such clusters
    except KeyError:
        return 1  # watched by controllers that do not declare the index: each cluster must be looked up


def _get(view: View, kind: Kind, name: str, namespace: str) -> Object | None:
    try:
        return view.get(kind, name, namespace)
    except UndeclaredKind:
        return None
