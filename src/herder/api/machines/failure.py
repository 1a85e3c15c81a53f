"""Why a machine could not be created, as the conditions of its Machine say."""

from __future__ import annotations

import re

from herder.api.capi.conditions import find
from herder.engine.meta.kinds import Object

CREATE_ERROR = "CreateError"  # its Job failed; the MachineSet replaces the Machine
NOT_PREPARED = "NotPrepared"  # its Job cannot be created until a user fixes the problem
POD_WAITS = "pod is waiting: "  # in the message, before the reason of the pod
_BLOCKED = re.compile(rf"({POD_WAITS}|Failed to (?:create|update|delete) ).*", re.DOTALL)  # the latter of a quota
_PREAMBLE = "Running pre-create checks..."  # printed by every driver, before the error


def creation_failure(machine: Object) -> str:
    """Return why the infrastructure of a Machine could not be created; empty if it could, or may still be."""
    known = find(machine, "InfrastructureReady") or {}
    message = str(known.get("message", ""))
    _, is_error, why = message.partition(f"{CREATE_ERROR}: ")
    if known.get("status") != "False" or not (is_error or known.get("reason") == NOT_PREPARED):
        return ""
    why = why if is_error else message
    return " ".join(why.replace(_PREAMBLE, "").split())


def creation_blocker(machine: Object) -> str:
    """Return why the Job that creates the machine or its pod cannot start; empty if it can, as far as known."""
    known = find(machine, "InfrastructureReady") or {}
    found = _BLOCKED.search(str(known.get("message", ""))) if known.get("status") == "Unknown" else None
    return " ".join(found[0].split()) if found else ""


def without_name(why: str, machine: str) -> str:
    """Return a failure without the name of the machine, to compare it with those of others."""
    return re.sub(rf"(?<![\w-]){re.escape(machine)}(?![\w-])", "…", why)


def needs_user(machine: Object) -> bool:
    """Return whether nothing is retried until a user changes something."""
    known = find(machine, "InfrastructureReady") or {}
    return known.get("status") == "False" and known.get("reason") == NOT_PREPARED
