"""Sync labels, annotations and taints from a Machine to its Node, in one patch.

Annotations on the Node record what came from the Machine: removing it from the Machine removes it from the Node, and
other values stay. A kubelet can write any annotation of its own Node, but NodeRestriction keeps it from changing taints
and labels in Kubernetes' own domains. For those, an annotation on the Machine keeps the record, so that a compromised
node cannot remove what an administrator set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from herder.api.capi.contract import infra_machine
from herder.api.capi.kinds import NODE
from herder.api.capi.names import (
    ANNOTATIONS_FROM_MACHINE,
    BROUGHT_TO_NODE,
    INTERRUPTIBLE,
    LABELS_FROM_MACHINE,
    NODE_CLUSTER_NAME,
    NODE_CLUSTER_NAMESPACE,
    NODE_MACHINE,
    NODE_OWNER_KIND,
    NODE_OWNER_NAME,
    OUTDATED_REVISION_TAINT,
    REVISION,
    TAINTS_FROM_MACHINE,
    UNINITIALIZED_TAINT,
    annotations_of,
    labels_of,
)
from herder.api.numbers import parse_int64
from herder.api.settings import MACHINE_TAINT_PROPAGATION, SYNC_MACHINE_ANNOTATIONS, SYNC_MACHINE_LABELS, split_patterns
from herder.api.writes import difference, ref
from herder.controllers.capi.machine.scope import MachineScope
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Patch
from herder.engine.runtime.view import View

_ROLES = "node-role.kubernetes.io"
_RESTRICTED = "node-restriction.kubernetes.io"
_MANAGED = "node.cluster.x-k8s.io"
_RESTRICTED_SUFFIXES = (".kubernetes.io", ".k8s.io")  # label domains that NodeRestriction protects
_BOOKKEEPING = (NODE_CLUSTER_NAME, NODE_CLUSTER_NAMESPACE, NODE_MACHINE, NODE_OWNER_KIND, NODE_OWNER_NAME)

Taint = Object
Setting = Callable[[str], str]


def sync(view: View, scope: MachineScope, node: Object) -> tuple[Patch, ...]:
    labels = _labels(scope, view.setting)
    annotations = _annotations(scope, view.setting)
    bookkeeping = _bookkeeping(scope)
    taints = _taints_of(node)
    kept, synced = annotations_of(node), _split(annotations_of(scope.machine).get(BROUGHT_TO_NODE))
    status = {LABELS_FROM_MACHINE: _joined(labels), ANNOTATIONS_FROM_MACHINE: _joined(annotations)}
    if view.setting(MACHINE_TAINT_PROPAGATION) == "true":
        tracked = _split(kept[TAINTS_FROM_MACHINE]) & synced if TAINTS_FROM_MACHINE in kept else None
        taints = _propagated(scope, taints, tracked)
        status[TAINTS_FROM_MACHINE] = _joined(_named(taint) for taint in _machine_taints(scope, "Always"))
    changes: Object = {}
    stale_labels = {key for key in _split(kept.get(LABELS_FROM_MACHINE)) if key in synced or not _has_finalizer(key)}
    if label_changes := difference(labels_of(node), _replaced(labels_of(node), stale_labels, labels)):
        changes["metadata"] = {"labels": label_changes}
    stale = _split(kept.get(ANNOTATIONS_FROM_MACHINE)) | set(_BOOKKEEPING)
    if annotation_changes := difference(kept, _replaced(kept, stale, annotations | bookkeeping | status)):
        changes.setdefault("metadata", {})["annotations"] = annotation_changes
    taints = _managed_taints(scope, taints)
    if taints != _taints_of(node):
        changes["spec"] = {"taints": taints}
    if not changes:
        return ()
    # A merge patch replaces the taint list, which has other writers: use the resourceVersion as a precondition.
    locked = node["metadata"].get("resourceVersion", "") if "spec" in changes else ""
    reason = "its Machine's labels, annotations and taints"
    return (Patch(ref(NODE, node), changes, reason, resource_version=locked, target=scope.cluster_key),)


def with_sync_record(scope: MachineScope, machine: Object, setting: Setting) -> Object:
    """The Machine with the annotation that records synced labels and taints which kubelets may not change."""
    synced = {key for key in _labels(scope, setting) if _has_finalizer(key)}
    if setting(MACHINE_TAINT_PROPAGATION) == "true":
        synced |= {_named(taint) for taint in _machine_taints(scope, "Always")}
    known = annotations_of(machine)
    wanted = _joined(synced | _split(known.get(BROUGHT_TO_NODE)))
    if not wanted:
        return machine
    return {**machine, "metadata": {**machine["metadata"], "annotations": {**known, BROUGHT_TO_NODE: wanted}}}


def _has_finalizer(label: str) -> bool:
    return f".{label.partition('/')[0]}".endswith(_RESTRICTED_SUFFIXES)


def _labels(scope: MachineScope, setting: Setting) -> dict[str, str]:
    more = _patterns(setting(SYNC_MACHINE_LABELS))
    labels = {
        key: value
        for key, value in labels_of(scope.machine).items()
        if key.partition("/")[0] == _ROLES or _within(key, _RESTRICTED, _MANAGED) or _matches(key, more)
    }
    infrastructure = scope.infrastructure
    if infrastructure.obj is not None and infra_machine.interruptible(infrastructure.obj, infrastructure.contract):
        labels[INTERRUPTIBLE] = ""
    return labels


def _annotations(scope: MachineScope, setting: Setting) -> dict[str, str]:
    more = _patterns(setting(SYNC_MACHINE_ANNOTATIONS))
    annotations = annotations_of(scope.machine)
    return {
        key: value
        for key, value in annotations.items()
        if (_within(key, _MANAGED) or _matches(key, more)) and key not in _BOOKKEEPING
    }


def _bookkeeping(scope: MachineScope) -> dict[str, str]:
    meta = scope.machine["metadata"]
    names = {
        NODE_CLUSTER_NAME: scope.machine["spec"]["clusterName"],
        NODE_CLUSTER_NAMESPACE: meta["namespace"],
        NODE_MACHINE: meta["name"],
    }
    for owner in meta.get("ownerReferences") or ():
        if owner.get("controller"):
            names |= {NODE_OWNER_KIND: owner["kind"], NODE_OWNER_NAME: owner["name"]}
    return names


def _within(key: str, *domains: str) -> bool:
    """Whether a label or annotation is in one of these domains or their subdomains."""
    domain = key.partition("/")[0]
    return any(domain == wanted or domain.endswith(f".{wanted}") for wanted in domains)


@lru_cache(maxsize=16)
def _patterns(setting: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(part) for part in split_patterns(setting))


def _matches(key: str, patterns: tuple[re.Pattern[str], ...]) -> bool:
    return any(pattern.search(key) for pattern in patterns)


def _replaced(have: Mapping[str, str], stale: set[str], wanted: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in have.items() if key not in stale} | dict(wanted)


# --- taints ---------------------------------------------------------------------------------------------------------


def _managed_taints(scope: MachineScope, taints: list[Taint]) -> list[Taint]:
    """Remove the uninitialized taint once labels are synced; taint Nodes of an outdated revision."""
    kept = [taint for taint in taints if _named(taint) != f"{UNINITIALIZED_TAINT}:NoSchedule"]
    outdated = {"key": OUTDATED_REVISION_TAINT, "effect": "PreferNoSchedule"}
    if not _is_outdated(scope):
        return [taint for taint in kept if _named(taint) != _named(outdated)]
    return kept if any(_named(taint) == _named(outdated) for taint in kept) else [*kept, outdated]


def _is_outdated(scope: MachineScope) -> bool:
    if scope.machine_set is None or scope.deployment is None:
        return False
    return _revision(scope.machine_set) < _revision(scope.deployment)


def _revision(obj: Object) -> int:
    return max(parse_int64(annotations_of(obj).get(REVISION, "")), 0)


def _propagated(scope: MachineScope, taints: list[Taint], tracked: set[str] | None) -> list[Taint]:
    """Taints with propagation Always, and those with OnInitialization at the first sync."""
    wanted = _machine_taints(scope, "Always")
    once = _machine_taints(scope, "OnInitialization")
    kept_for_good = {_named(taint) for taint in (*wanted, *once)}
    stale = (tracked or set()) - kept_for_good
    result = [taint for taint in taints if _named(taint) not in stale]
    for taint in wanted if tracked is not None else [*wanted, *once]:
        result = _with(result, taint)
    return result


def _with(taints: list[Taint], wanted: Taint) -> list[Taint]:
    for place, taint in enumerate(taints):
        if _named(taint) == _named(wanted):
            same = taint.get("value", "") == wanted.get("value", "")
            return taints if same else [*taints[:place], wanted, *taints[place + 1 :]]
    return [*taints, wanted]


def _machine_taints(scope: MachineScope, propagation: str) -> list[Taint]:
    return [
        {field: taint[field] for field in ("key", "value", "effect") if taint.get(field)}
        for taint in scope.machine["spec"].get("taints") or ()
        if taint["propagation"] == propagation
    ]


def _taints_of(node: Object) -> list[Taint]:
    return list((node.get("spec") or {}).get("taints") or ())


def _named(taint: Taint) -> str:
    return f"{taint['key']}:{taint['effect']}"


def _joined(names: Iterable[str]) -> str:
    return ",".join(sorted(names))


def _split(names: str | None) -> set[str]:
    return set((names or "").split(",")) - {""}
