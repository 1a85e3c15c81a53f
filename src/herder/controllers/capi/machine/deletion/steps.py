"""Order of the deletion stages. Each derives its state from the objects alone, so a restart loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from herder.api.capi.conditions import Condition, condition
from herder.api.capi.kinds import MACHINE, MACHINE_DRAIN_RULE
from herder.api.capi.names import MACHINE_FINALIZER, is_deleting
from herder.api.events import recording
from herder.api.writes import delete, object_patch, ref
from herder.controllers.capi.externals import External
from herder.controllers.capi.machine.deletion import hooks
from herder.controllers.capi.machine.deletion.drain import drain, drained_event, is_drain_skipped
from herder.controllers.capi.machine.deletion.node import (
    ACTIVE_CONTROL_PLANE,
    active_control_plane,
    delete_node,
    node_operations,
)
from herder.controllers.capi.machine.deletion.scope import DeletionScope
from herder.controllers.capi.machine.deletion.stage import STARTED, DeletionStep, Stage, StageDone, StagePending
from herder.controllers.capi.machine.deletion.volumes import wait_for_volumes
from herder.engine.control.cache import Indexer
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Decision, Events, Observe, Wait, waiting
from herder.engine.runtime.handlers import Indexed, Watches, changed
from herder.engine.runtime.view import View

DELETING_INDEX = "deleting"
"""Index of Machines being deleted by namespace: a changed MachineDrainRule affects all of them."""


def _by_namespace_if_deleting(machine: Object) -> Iterable[str]:
    return _namespace(machine) if is_deleting(machine) else ()


def _namespace(obj: Object) -> Iterable[str]:
    return (obj["metadata"]["namespace"],)


WATCHES: tuple[Watches, ...] = (Watches(MACHINE_DRAIN_RULE, Indexed(DELETING_INDEX, _namespace), changed("spec")),)
"""Watches of the Machine controller that deletion needs."""

INDEXES: Mapping[Kind, Mapping[str, Indexer]] = {
    MACHINE: {ACTIVE_CONTROL_PLANE: active_control_plane, DELETING_INDEX: _by_namespace_if_deleting}
}
"""Indexes of the Machine controller that deletion needs."""


def step(
    view: View, machine: Object, cluster: Object, *, infrastructure: External, bootstrap: External
) -> DeletionStep:
    """Run the stages in order up to the first pending one."""
    node = node_operations(view, machine, cluster, infrastructure)
    scope = DeletionScope(view, machine, cluster, infrastructure, bootstrap, node)
    conditions: tuple[Condition, ...] = ()
    observe = node.observe
    for stage in STAGES:
        reached = stage(scope)
        conditions += reached.legacy
        if isinstance(reached, StagePending):
            return _pending(scope, reached, conditions, observe)
        observe += reached.observe
    return _finished(scope, conditions)


def _pre_drain_hooks(scope: DeletionScope) -> Stage:
    if scope.node.pending:
        return StagePending(*STARTED)
    return StageDone() if scope.node.unknown else hooks.pre_drain(scope.machine)


def _drain(scope: DeletionScope) -> Stage:
    return StageDone() if scope.node.unknown else drain(scope)


def _volumes(scope: DeletionScope) -> Stage:
    return StageDone() if scope.node.unknown else wait_for_volumes(scope)


def _pre_terminate_hooks(scope: DeletionScope) -> Stage:
    return hooks.pre_terminate(scope.machine)


def _infrastructure(scope: DeletionScope) -> Stage:
    reference = scope.machine["spec"].get("infrastructureRef")
    return _delete_reference(
        scope.infrastructure,
        reference,
        "WaitingForInfrastructureDeletion",
        "its Machine is deleted",
        (drained_event(scope),) if scope.node.record is not None and not is_drain_skipped(scope) else (),
    )


def _bootstrap(scope: DeletionScope) -> Stage:
    reference = (scope.machine["spec"].get("bootstrap") or {}).get("configRef")
    return _delete_reference(scope.bootstrap, reference, "WaitingForBootstrapDeletion", "its Machine is deleted")


STAGES: tuple[Callable[[DeletionScope], Stage], ...] = (
    _pre_drain_hooks,
    _drain,
    _volumes,
    _pre_terminate_hooks,
    _infrastructure,
    _bootstrap,
    delete_node,  # last, when nothing runs on the Node anymore
)


def _delete_reference(found: External, reference: Object | None, reason: str, why: str, events: Events = ()) -> Stage:
    """Delete the referenced object and wait until it is gone."""
    if not reference or not reference.get("kind") or found.deleted:
        return StageDone()
    if found.obj is None or found.kind is None:
        message = f"Failed to delete {reference['kind']}: {found.problem}"
        return StagePending("InternalError", message, waiting(message), debounce=0.0)
    message = f"Waiting for {reference['kind']} to be deleted"
    writes = () if is_deleting(found.obj) else (recording(delete(found.kind, found.obj, why), *events),)
    return StagePending(reason, message, Decision(writes=writes, wait=Wait(message, ref(found.kind, found.obj))))


def _pending(
    scope: DeletionScope, held: StagePending, conditions: tuple[Condition, ...], observe: tuple[Observe, ...]
) -> DeletionStep:
    status = scope.machine.get("status") or {}
    actions = held.decision.writes or held.decision.effects
    refused = scope.view.refused if actions else None  # refusal of an action that is retried now
    message = f"{held.message}\n* {refused}" if refused else held.message
    return DeletionStep(
        held.decision + Decision(observe=observe),
        condition("Deleting", "True", held.reason, message),
        conditions,
        {**(status.get("deletion") or {}), **held.started},
        scope.node.name,
        held.debounce if status.get("nodeRef") else 0.0,
    )


def _finished(scope: DeletionScope, conditions: tuple[Condition, ...]) -> DeletionStep:
    meta = scope.machine["metadata"]
    left = [name for name in meta.get("finalizers") or [] if name != MACHINE_FINALIZER]
    wanted = {**scope.machine, "metadata": {**meta, "finalizers": left}}
    return DeletionStep(
        Decision(writes=object_patch(MACHINE, scope.machine, wanted, "deletion is complete")),
        condition("Deleting", "True", "DeletionCompleted", "Deletion completed"),
        conditions,
        (scope.machine.get("status") or {}).get("deletion") or {},
        finished=True,
    )
