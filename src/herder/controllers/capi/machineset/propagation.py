"""In-place propagation of a MachineSet's template to existing Machines.

An annotation on each Machine records which labels and annotations came from the template. A digest of the propagated
values is therefore computable from the Machine alone: an index counts the Machines with the wanted digest, and changes
by others are detected too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from herder.api.capi.kinds import MACHINE
from herder.api.capi.membership import member_keys
from herder.api.capi.names import PROPAGATED, annotations_of, is_deleting, labels_of
from herder.api.writes import object_patch, ref
from herder.controllers.capi.externals import External, look_up_referenced
from herder.controllers.capi.machineset.machines import (
    IN_PLACE,
    machine_annotations,
    machine_labels,
    updated_machine,
)
from herder.controllers.capi.machineset.scope import BATCH, MANAGER, METADATA_MANAGER, MachineSetScope
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Apply, Decision, Parallel, Patch, Write

PROPAGATED_INDEX = "set-in-step"
DEFAULT_NODE_DELETION_SECONDS = 10  # the default that admission sets

Propagated = tuple[dict[str, str], dict[str, str], Object]
"""Labels, annotations, and spec fields."""


def propagate(scope: MachineSetScope) -> Decision:
    """Update Machines with an outdated digest.

    Bootstrap and infrastructure objects are updated first: the Machine's digest stays outdated until they are done.
    """
    wanted = wanted_digests(scope.machine_set)
    if sum(scope.members.count(PROPAGATED_INDEX, f"/{digest}") for digest in wanted) == scope.members.total:
        return Decision()
    behind = [machine for machine in scope.members.listed() if _digest_of(machine) not in wanted][:BATCH]
    externals = [(external, machine) for machine in behind for external in _externals(scope, machine)]
    steps: tuple[list[Write], ...] = (
        [patch for external, machine in externals for patch in _removals(scope.machine_set, machine, external)],
        [_metadata(scope.machine_set, external) for external, _ in externals],
        [write for machine in behind for write in _update_machine(scope.machine_set, machine)],
    )
    return Decision(writes=tuple(Parallel(tuple(writes)) for writes in steps if writes))


def by_propagated_digest(machine: Object) -> Iterable[str]:
    """Indexer: owner, Cluster and digest of the propagated values."""
    return [f"{owner}/{_digest_of(machine)}" for owner in member_keys(machine)]


def wanted_digests(machine_set: Object) -> tuple[str, str]:
    """Wanted digest of a Machine, and of one being deleted, which only gets the fields that affect its deletion."""
    fields = _fields(machine_set["spec"]["template"]["spec"])
    return _digest((machine_labels(machine_set), machine_annotations(machine_set), fields)), _digest(({}, {}, fields))


def _digest_of(machine: Object) -> str:
    if is_deleting(machine):
        return _digest(({}, {}, _fields(machine["spec"])))
    labels, annotations = _propagated_keys(machine)
    return _digest(
        (
            {key: value for key, value in labels_of(machine).items() if key in labels},
            {key: value for key, value in annotations_of(machine).items() if key in annotations},
            _fields(machine["spec"]),
        )
    )


def _digest(propagated: Propagated) -> str:
    text = json.dumps(propagated, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _propagated_keys(machine: Object) -> tuple[set[str], set[str]]:
    labels, _, annotations = annotations_of(machine).get(PROPAGATED, "").partition(";")
    return set(labels.split(",")) - {""}, set(annotations.split(",")) - {""}


def _fields(spec: Object) -> Object:
    """The propagated spec fields in canonical form."""
    fields: Object = {name: _canonical(spec[name]) for name in IN_PLACE if spec.get(name)}
    deletion = fields.get("deletion") or {}
    return {**fields, "deletion": {"nodeDeletionTimeoutSeconds": DEFAULT_NODE_DELETION_SECONDS, **deletion}}


def _canonical(value: Any) -> Any:
    """Gates and taints are keyed lists: their order is irrelevant."""
    return sorted(value, key=lambda item: json.dumps(item, sort_keys=True)) if isinstance(value, list) else value


# --- writes ---------------------------------------------------------------------------------------------------------


def _update_machine(machine_set: Object, machine: Object) -> tuple[Write, ...]:
    if not is_deleting(machine):
        updated = updated_machine(machine_set, machine)
        return (Apply(MACHINE, updated, "propagate the template in place", manager=MANAGER),)
    spec = {name: value for name, value in machine["spec"].items() if name not in IN_PLACE}
    template = machine_set["spec"]["template"]["spec"]
    spec |= {name: template[name] for name in IN_PLACE if name in template}
    default = {"nodeDeletionTimeoutSeconds": DEFAULT_NODE_DELETION_SECONDS}
    spec["deletion"] = {**default, **(template.get("deletion") or {})}
    return object_patch(MACHINE, machine, {**machine, "spec": spec}, "propagate the deletion fields of the template")


def _externals(scope: MachineSetScope, machine: Object) -> list[External]:
    if is_deleting(machine):
        return []
    spec = machine["spec"]
    references = {
        "spec.bootstrap.configRef": (spec.get("bootstrap") or {}).get("configRef"),
        "spec.infrastructureRef": spec.get("infrastructureRef"),
    }
    found = [look_up_referenced(scope.view, machine, path, each) for path, each in references.items() if each]
    return [external for external in found if external.obj is not None]


def _metadata(machine_set: Object, external: External) -> Apply:
    assert external.obj is not None
    assert external.kind is not None
    meta = external.obj["metadata"]
    obj = {
        "apiVersion": external.kind.api_version,
        "kind": external.kind.kind,
        "metadata": {
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],  # The UID prevents the apply from recreating a deleted object.
            "labels": machine_labels(machine_set),
            "annotations": machine_annotations(machine_set),
        },
    }
    return Apply(external.kind, obj, "propagate labels and annotations of the template", manager=METADATA_MANAGER)


def _removals(machine_set: Object, machine: Object, external: External) -> tuple[Patch, ...]:
    """Patches that remove labels and annotations.

    The creator's field manager owns them, so an apply by another manager cannot remove them.
    """
    assert external.obj is not None
    assert external.kind is not None
    labels, annotations = _propagated_keys(machine)
    changes: Object = {}
    if gone := (labels - machine_labels(machine_set).keys()) & labels_of(external.obj).keys():
        changes["labels"] = dict.fromkeys(sorted(gone))
    if gone := (annotations - machine_annotations(machine_set).keys()) & annotations_of(external.obj).keys():
        changes["annotations"] = dict.fromkeys(sorted(gone))
    if not changes:
        return ()
    return (
        Patch(
            ref(external.kind, external.obj),
            {"metadata": changes},
            "the template no longer has these labels or annotations",
        ),
    )
