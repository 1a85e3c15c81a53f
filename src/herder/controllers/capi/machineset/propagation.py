"""What a MachineSet's template changes on Machines that are there, without replacing them.

A Machine remembers which of its labels and annotations came from the template. So from the Machine alone one can tell
by a digest what it has of the template's, an index counts those that are in step, and edits by others show as well.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import PROPAGATED, annotations_of, is_deleting, labels_of
from herder.api.writing import object_patch, ref
from herder.controllers.capi.externals import External, look_up
from herder.controllers.capi.machineset.machines import (
    IN_PLACE,
    machine_annotations,
    machine_labels,
    updated_machine,
)
from herder.controllers.capi.machineset.scope import BATCH, MANAGER, METADATA_MANAGER, Scope
from herder.engine.control.cache import controller_in_namespace
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Apply, Decision, Parallel, Patch, Write

IN_STEP = "set-in-step"
DEFAULT_NODE_DELETION_SECONDS = 10  # what admission fills in where the template says nothing

Propagated = tuple[dict[str, str], dict[str, str], Object]
"""Labels, annotations, fields of the spec."""


def propagate(scope: Scope) -> Decision:
    """The objects beside a Machine go first: the Machine stays out of step until all of it is done."""
    wanted = wanted_digests(scope.machine_set)
    if sum(scope.members.count(IN_STEP, f"/{digest}") for digest in wanted) == scope.members.total:
        return Decision()
    behind = [machine for machine in scope.members.listed() if _digest_of(machine) not in wanted][:BATCH]
    externals = [(external, machine) for machine in behind for external in _externals(scope, machine)]
    steps: tuple[list[Write], ...] = (
        [patch for external, machine in externals for patch in _removals(scope.machine_set, machine, external)],
        [_metadata(scope.machine_set, external) for external, _ in externals],
        [write for machine in behind for write in _in_step(scope.machine_set, machine)],
    )
    return Decision(writes=tuple(Parallel(tuple(writes)) for writes in steps if writes))


def in_step(machine: Object) -> Iterable[str]:
    """Index: by the set and what the Machine has of its template."""
    return [f"{owner}/{_digest_of(machine)}" for owner in controller_in_namespace(machine)]


def wanted_digests(machine_set: Object) -> tuple[str, str]:
    """Of Machines that stay, and of those that go, which follow only what matters for their going."""
    fields = _fields(machine_set["spec"]["template"]["spec"])
    return _digest((machine_labels(machine_set), machine_annotations(machine_set), fields)), _digest(({}, {}, fields))


def _digest_of(machine: Object) -> str:
    if is_deleting(machine):
        return _digest(({}, {}, _fields(machine["spec"])))
    labels, annotations = _remembered(machine)
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


def _remembered(machine: Object) -> tuple[set[str], set[str]]:
    labels, _, annotations = annotations_of(machine).get(PROPAGATED, "").partition(";")
    return set(labels.split(",")) - {""}, set(annotations.split(",")) - {""}


def _fields(spec: Object) -> Object:
    """The fields that follow the template, so that different ways to say the same are equal."""
    fields: Object = {name: _canonical(spec[name]) for name in IN_PLACE if spec.get(name)}
    deletion = fields.get("deletion") or {}
    return {**fields, "deletion": {"nodeDeletionTimeoutSeconds": DEFAULT_NODE_DELETION_SECONDS, **deletion}}


def _canonical(value: Any) -> Any:
    """Lists of gates and taints are keyed: their order says nothing."""
    return sorted(value, key=lambda item: json.dumps(item, sort_keys=True)) if isinstance(value, list) else value


# --- bringing into step ---------------------------------------------------------------------------------------------


def _in_step(machine_set: Object, machine: Object) -> tuple[Write, ...]:
    if not is_deleting(machine):
        updated = updated_machine(machine_set, machine)
        return (Apply(MACHINE, updated, "the template says so", manager=MANAGER),)
    spec = {name: value for name, value in machine["spec"].items() if name not in IN_PLACE}
    template = machine_set["spec"]["template"]["spec"]
    spec |= {name: template[name] for name in IN_PLACE if name in template}
    default = {"nodeDeletionTimeoutSeconds": DEFAULT_NODE_DELETION_SECONDS}
    spec["deletion"] = {**default, **(template.get("deletion") or {})}
    return object_patch(MACHINE, machine, {**machine, "spec": spec}, "the template says how Machines go")


def _externals(scope: Scope, machine: Object) -> list[External]:
    if is_deleting(machine):
        return []
    spec = machine["spec"]
    references = [(spec.get("bootstrap") or {}).get("configRef"), spec.get("infrastructureRef")]
    found = [look_up(scope.view, reference, scope.namespace) for reference in references if reference]
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
            "uid": meta["uid"],  # never makes one anew that has just gone
            "labels": machine_labels(machine_set),
            "annotations": machine_annotations(machine_set),
        },
    }
    return Apply(external.kind, obj, "labels and annotations of the template", manager=METADATA_MANAGER)


def _removals(machine_set: Object, machine: Object, external: External) -> tuple[Patch, ...]:
    """Who made the object owns what it was made with, so an apply by another cannot take it away."""
    assert external.obj is not None
    assert external.kind is not None
    labels, annotations = _remembered(machine)
    changes: Object = {}
    if gone := (labels - machine_labels(machine_set).keys()) & labels_of(external.obj).keys():
        changes["labels"] = dict.fromkeys(sorted(gone))
    if gone := (annotations - machine_annotations(machine_set).keys()) & annotations_of(external.obj).keys():
        changes["annotations"] = dict.fromkeys(sorted(gone))
    if not changes:
        return ()
    return (Patch(ref(external.kind, external.obj), {"metadata": changes}, "the template no longer says so"),)
