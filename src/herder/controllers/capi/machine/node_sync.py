"""What a Machine tells its Node: labels, annotations and taints, in one patch, and only what differs.

Annotations on the Node keep what came from the Machine, so that what leaves the Machine leaves the Node too, and
what others put there stays. A kubelet writes any annotation of its own Node, but NodeRestriction lets it change neither
taints nor labels of Kubernetes' own domains. Of those, an annotation of the Machine keeps what was brought over, so
that a compromised node does not get rid of what an administrator put there.
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
from herder.api.numbers import integer
from herder.api.settings import MACHINE_TAINT_PROPAGATION, SYNC_MACHINE_ANNOTATIONS, SYNC_MACHINE_LABELS, patterns
from herder.api.writing import difference, ref
from herder.controllers.capi.machine.scene import Scene
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Patch
from herder.engine.runtime.view import View

_ROLES = "node-role.kubernetes.io"
_RESTRICTED = "node-restriction.kubernetes.io"
_MANAGED = "node.cluster.x-k8s.io"
_GUARDED = (".kubernetes.io", ".k8s.io")  # domains of labels that NodeRestriction guards
_BOOKKEEPING = (NODE_CLUSTER_NAME, NODE_CLUSTER_NAMESPACE, NODE_MACHINE, NODE_OWNER_KIND, NODE_OWNER_NAME)

Taint = Object
Setting = Callable[[str], str]


def sync(view: View, scene: Scene, node: Object) -> tuple[Patch, ...]:
    labels = _labels(scene, view.setting)
    annotations = _annotations(scene, view.setting)
    bookkeeping = _bookkeeping(scene)
    taints = _taints_of(node)
    kept, brought = annotations_of(node), _split(annotations_of(scene.machine).get(BROUGHT_TO_NODE))
    status = {LABELS_FROM_MACHINE: _joined(labels), ANNOTATIONS_FROM_MACHINE: _joined(annotations)}
    if view.setting(MACHINE_TAINT_PROPAGATION) == "true":
        tracked = _split(kept[TAINTS_FROM_MACHINE]) & brought if TAINTS_FROM_MACHINE in kept else None
        taints = _propagated(scene, taints, tracked)
        status[TAINTS_FROM_MACHINE] = _joined(_named(taint) for taint in _machine_taints(scene, "Always"))
    changes: Object = {}
    stale_labels = {key for key in _split(kept.get(LABELS_FROM_MACHINE)) if key in brought or not _is_guarded(key)}
    if label_changes := difference(labels_of(node), _replaced(labels_of(node), stale_labels, labels)):
        changes["metadata"] = {"labels": label_changes}
    stale = _split(kept.get(ANNOTATIONS_FROM_MACHINE)) | set(_BOOKKEEPING)
    if annotation_changes := difference(kept, _replaced(kept, stale, annotations | bookkeeping | status)):
        changes.setdefault("metadata", {})["annotations"] = annotation_changes
    taints = _marked(scene, taints)
    if taints != _taints_of(node):
        changes["spec"] = {"taints": taints}
    if not changes:
        return ()
    # A merge patch replaces the list of taints, which has other writers: refuse it if the Node changed meanwhile.
    locked = node["metadata"].get("resourceVersion", "") if "spec" in changes else ""
    reason = "its Machine's labels, annotations and taints"
    return (Patch(ref(NODE, node), changes, reason, resource_version=locked, target=scene.cluster_key),)


def recorded(scene: Scene, machine: Object, setting: Setting) -> Object:
    """The Machine with the record of what its Node gets, or got once, that no kubelet may change."""
    brought = {key for key in _labels(scene, setting) if _is_guarded(key)}
    if setting(MACHINE_TAINT_PROPAGATION) == "true":
        brought |= {_named(taint) for taint in _machine_taints(scene, "Always")}
    known = annotations_of(machine)
    wanted = _joined(brought | _split(known.get(BROUGHT_TO_NODE)))
    if not wanted:
        return machine
    return {**machine, "metadata": {**machine["metadata"], "annotations": {**known, BROUGHT_TO_NODE: wanted}}}


def _is_guarded(label: str) -> bool:
    return f".{label.partition('/')[0]}".endswith(_GUARDED)


def _labels(scene: Scene, setting: Setting) -> dict[str, str]:
    more = _patterns(setting(SYNC_MACHINE_LABELS))
    labels = {
        key: value
        for key, value in labels_of(scene.machine).items()
        if key.partition("/")[0] == _ROLES or _within(key, _RESTRICTED, _MANAGED) or _matches(key, more)
    }
    infrastructure = scene.infrastructure
    if infrastructure.obj is not None and infra_machine.interruptible(infrastructure.obj, infrastructure.contract):
        labels[INTERRUPTIBLE] = ""
    return labels


def _annotations(scene: Scene, setting: Setting) -> dict[str, str]:
    more = _patterns(setting(SYNC_MACHINE_ANNOTATIONS))
    annotations = annotations_of(scene.machine)
    return {
        key: value
        for key, value in annotations.items()
        if (_within(key, _MANAGED) or _matches(key, more)) and key not in _BOOKKEEPING
    }


def _bookkeeping(scene: Scene) -> dict[str, str]:
    meta = scene.machine["metadata"]
    names = {
        NODE_CLUSTER_NAME: scene.machine["spec"]["clusterName"],
        NODE_CLUSTER_NAMESPACE: meta["namespace"],
        NODE_MACHINE: meta["name"],
    }
    for owner in meta.get("ownerReferences") or ():
        if owner.get("controller"):
            names |= {NODE_OWNER_KIND: owner["kind"], NODE_OWNER_NAME: owner["name"]}
    return names


def _within(key: str, *domains: str) -> bool:
    """Whether a label or annotation is of one of these domains, or of a part of it."""
    domain = key.partition("/")[0]
    return any(domain == wanted or domain.endswith(f".{wanted}") for wanted in domains)


@lru_cache(maxsize=16)
def _patterns(setting: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(part) for part in patterns(setting))


def _matches(key: str, patterns: tuple[re.Pattern[str], ...]) -> bool:
    return any(pattern.search(key) for pattern in patterns)


def _replaced(have: Mapping[str, str], stale: set[str], wanted: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in have.items() if key not in stale} | dict(wanted)


# --- taints ----------------------------------------------------------------------------------------------------------


def _marked(scene: Scene, taints: list[Taint]) -> list[Taint]:
    """Nodes are initialized once their labels are here; those of an outdated revision should get no new pods."""
    kept = [taint for taint in taints if _named(taint) != f"{UNINITIALIZED_TAINT}:NoSchedule"]
    outdated = {"key": OUTDATED_REVISION_TAINT, "effect": "PreferNoSchedule"}
    if not _is_outdated(scene):
        return [taint for taint in kept if _named(taint) != _named(outdated)]
    return kept if any(_named(taint) == _named(outdated) for taint in kept) else [*kept, outdated]


def _is_outdated(scene: Scene) -> bool:
    if scene.machine_set is None or scene.deployment is None:
        return False
    return _revision(scene.machine_set) < _revision(scene.deployment)


def _revision(obj: Object) -> int:
    return max(integer(annotations_of(obj).get(REVISION, "")), 0)


def _propagated(scene: Scene, taints: list[Taint], tracked: set[str] | None) -> list[Taint]:
    """Taints that are wanted always, and those wanted at first if this is the first time."""
    wanted = _machine_taints(scene, "Always")
    once = _machine_taints(scene, "OnInitialization")
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


def _machine_taints(scene: Scene, propagation: str) -> list[Taint]:
    return [
        {field: taint[field] for field in ("key", "value", "effect") if taint.get(field)}
        for taint in scene.machine["spec"].get("taints") or ()
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
