"""Pre-drain and pre-terminate lifecycle hooks: annotations that block the deletion until they are removed."""

from __future__ import annotations

from herder.api.capi.conditions import legacy
from herder.api.capi.names import PRE_DRAIN_HOOK, PRE_TERMINATE_HOOK, annotations_of
from herder.controllers.capi.machine.deletion.stage import Stage, StagePending, succeeded
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import waiting

PRE_DRAIN_SUCCEEDED = "PreDrainDeleteHookSucceeded"
PRE_TERMINATE_SUCCEEDED = "PreTerminateDeleteHookSucceeded"


def pre_drain(machine: Object) -> Stage:
    return _hooks(machine, PRE_DRAIN_HOOK, "pre-drain", "WaitingForPreDrainHook", PRE_DRAIN_SUCCEEDED)


def pre_terminate(machine: Object) -> Stage:
    return _hooks(machine, PRE_TERMINATE_HOOK, "pre-terminate", "WaitingForPreTerminateHook", PRE_TERMINATE_SUCCEEDED)


def _hooks(machine: Object, prefix: str, moment: str, reason: str, condition_type: str) -> Stage:
    hooks = sorted(name for name in annotations_of(machine) if name.startswith(prefix))
    if not hooks:
        return succeeded(condition_type)
    message = f"Waiting for {moment} hooks to succeed (hooks: {','.join(hooks)})"
    condition = legacy(condition_type, "False", "WaitingExternalHook", "Info")
    return StagePending(reason, message, waiting(message), (condition,), debounce=0.0)
