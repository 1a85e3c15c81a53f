"""Events about a Machine, from the difference between its status and the next one."""

from __future__ import annotations

from collections.abc import Iterator

from herder.api.capi.conditions import find, find_legacy
from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import is_deleting
from herder.api.events import normal, warning
from herder.controllers.capi.machine.deletion.drain import SUCCEEDED
from herder.controllers.capi.machine.node import HEALTHY
from herder.controllers.capi.machine.scope import status_of
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Event


def status_events(machine: Object, status: Object) -> Iterator[Event]:
    after = {**machine, "status": status}
    node = (status.get("nodeRef") or {}).get("name", "")
    if node and not status_of(machine, "nodeRef", None) and not is_deleting(machine):
        yield normal(MACHINE, machine, "SuccessfulSetNodeRef", node)
    if (message := _new_message(machine, after, "NodeDeleted")) and not is_deleting(machine):
        yield warning(MACHINE, machine, "NodeDeleted", message)
    if why := _new_drain_failure(machine, after):
        yield warning(MACHINE, machine, "FailedDrainNode", f'error draining Machine\'s node "{node}": {why}')
    failure = _failure(after)
    if failure and failure != _failure(machine):
        yield warning(MACHINE, machine, "MachineFailed", failure)


def _new_message(before: Object, after: Object, reason: str) -> str:
    """Message of NodeHealthy if it has just got this reason."""
    known, new = find(before, HEALTHY) or {}, find(after, HEALTHY) or {}
    return str(new.get("message", "")) if new.get("reason") == reason != known.get("reason") else ""


def _new_drain_failure(before: Object, after: Object) -> str:
    known, new = find_legacy(before, SUCCEEDED) or {}, find_legacy(after, SUCCEEDED) or {}
    has_failed = new.get("reason") == "DrainingFailed" and new.get("message") != known.get("message")
    return str(new.get("message", "")) if has_failed else ""


def _failure(machine: Object) -> str:
    return str((status_of(machine, "deprecated", {}).get("v1beta1") or {}).get("failureMessage") or "")
