"""The order of a deletion. Each stage says from the objects alone whether it is over, so a restart loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from herder.api.capi.conditions import Condition, condition
from herder.api.capi.kinds import MACHINE, MACHINE_DRAIN_RULE
from herder.api.capi.names import MACHINE_FINALIZER, is_deleting
from herder.api.writing import delete, object_patch, ref
from herder.controllers.capi.externals import External
from herder.controllers.capi.machine.deletion import hooks
from herder.controllers.capi.machine.deletion.drain import drain
from herder.controllers.capi.machine.deletion.node import (
    ACTIVE_CONTROL_PLANE,
    active_control_plane,
    delete_node,
    look_at_node,
)
from herder.controllers.capi.machine.deletion.reports import STARTED, DeletionStep, Held, Passed, Stage
from herder.controllers.capi.machine.deletion.scope import Scope
from herder.controllers.capi.machine.deletion.volumes import wait_for_volumes
from herder.engine.control.cache import Indexer
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Decision, Observe, Wait, waiting
from herder.engine.runtime.handlers import Indexed, Watches, changed
from herder.engine.runtime.view import View

GOING = "going"
"""The index of Machines that are being deleted, by namespace: a change of the rules there is for all of them."""


def _going(machine: Object) -> Iterable[str]:
    return _namespace(machine) if is_deleting(machine) else ()


def _namespace(obj: Object) -> Iterable[str]:
    return (obj["metadata"]["namespace"],)


WATCHES: tuple[Watches, ...] = (Watches(MACHINE_DRAIN_RULE, Indexed(GOING, _namespace), changed("spec")),)
"""What the Machine controller watches for the sake of deletions."""

INDEXES: Mapping[Kind, Mapping[str, Indexer]] = {MACHINE: {ACTIVE_CONTROL_PLANE: active_control_plane, GOING: _going}}
"""What the Machine controller indexes for the sake of deletions."""


def step(
    view: View, machine: Object, cluster: Object, *, infrastructure: External, bootstrap: External
) -> DeletionStep:
    """The Node is found here: by the name in `status.nodeRef`, else by the provider ID."""
    node = look_at_node(view, machine, cluster, infrastructure)
    scope = Scope(view, machine, cluster, infrastructure, bootstrap, node)
    conditions: tuple[Condition, ...] = ()
    observe = node.observe
    for stage in STAGES:
        reached = stage(scope)
        conditions += reached.legacy
        if isinstance(reached, Held):
            return _held(scope, reached, conditions, observe)
        observe += reached.observe
    return _finished(scope, conditions)


def _pre_drain_hooks(scope: Scope) -> Stage:
    if scope.node.looking:
        return Held(*STARTED)
    return Passed() if scope.node.unknown else hooks.pre_drain(scope.machine)


def _drain(scope: Scope) -> Stage:
    return Passed() if scope.node.unknown else drain(scope)


def _volumes(scope: Scope) -> Stage:
    return Passed() if scope.node.unknown else wait_for_volumes(scope)


def _pre_terminate_hooks(scope: Scope) -> Stage:
    return hooks.pre_terminate(scope.machine)


def _infrastructure(scope: Scope) -> Stage:
    reference = scope.machine["spec"].get("infrastructureRef")
    return _gone(scope.infrastructure, reference, "WaitingForInfrastructureDeletion", "its Machine is deleted")


def _bootstrap(scope: Scope) -> Stage:
    reference = (scope.machine["spec"].get("bootstrap") or {}).get("configRef")
    return _gone(scope.bootstrap, reference, "WaitingForBootstrapDeletion", "its Machine is deleted")


STAGES: tuple[Callable[[Scope], Stage], ...] = (
    _pre_drain_hooks,
    _drain,
    _volumes,
    _pre_terminate_hooks,
    _infrastructure,
    _bootstrap,
    delete_node,  # only when nothing runs there any more
)


def _gone(found: External, reference: Object | None, reason: str, why: str) -> Stage:
    """Deletes what a reference leads to, and waits until it is gone."""
    if not reference or not reference.get("kind") or found.missing:
        return Passed()
    if found.obj is None or found.kind is None:
        message = f"Failed to delete {reference['kind']}: {found.problem}"
        return Held("InternalError", message, waiting(message), patience=0.0)
    message = f"Waiting for {reference['kind']} to be deleted"
    writes = () if is_deleting(found.obj) else (delete(found.kind, found.obj, why),)
    return Held(reason, message, Decision(writes=writes, wait=Wait(message, ref(found.kind, found.obj))))


def _held(scope: Scope, held: Held, conditions: tuple[Condition, ...], observe: tuple[Observe, ...]) -> DeletionStep:
    status = scope.machine.get("status") or {}
    acts = held.decision.writes or held.decision.effects
    refused = scope.view.refused if acts else None  # of what is tried again now
    message = f"{held.message}\n* {refused}" if refused else held.message
    return DeletionStep(
        held.decision + Decision(observe=observe),
        condition("Deleting", "True", held.reason, message),
        conditions,
        {**(status.get("deletion") or {}), **held.started},
        scope.node.name,
        held.patience if status.get("nodeRef") else 0.0,
    )


def _finished(scope: Scope, conditions: tuple[Condition, ...]) -> DeletionStep:
    meta = scope.machine["metadata"]
    left = [name for name in meta.get("finalizers") or [] if name != MACHINE_FINALIZER]
    wanted = {**scope.machine, "metadata": {**meta, "finalizers": left}}
    return DeletionStep(
        Decision(writes=object_patch(MACHINE, scope.machine, wanted, "nothing of it is left")),
        condition("Deleting", "True", "DeletionCompleted", "Deletion completed"),
        conditions,
        (scope.machine.get("status") or {}).get("deletion") or {},
        finished=True,
    )
