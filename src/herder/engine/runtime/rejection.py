"""A write that the API server rejects until something else changes, such as one that exceeds a quota."""

from __future__ import annotations

from typing import NamedTuple

from herder.engine.control.cache import Key
from herder.engine.meta.errors import StatusError
from herder.engine.runtime.decision import MANAGEMENT, Delete, Patch, Ref, Write

_CLIENT_ERRORS = range(400, 500)
_RETRIED = (404, 409, 410, 429)


class Rejection(NamedTuple):
    """Reason and message, as an Event or a condition of the reconciled object shows them."""

    reason: str
    message: str


def rejection_of(key: Key, write: Write, error: Exception, *, creates: bool) -> Rejection | None:
    """Return how to report a failed write; None if it concerns no user, such as a conflict or an outage.

    Only writes in the namespace of the reconciled object: its readers may not read other namespaces. The message of an
    invalid Secret could quote it.
    """
    if not isinstance(error, StatusError) or error.code not in _CLIENT_ERRORS or error.code in _RETRIED:
        return None
    written = _target(write)
    if write.target != MANAGEMENT or not key.namespace or written.namespace != key.namespace:
        return None
    detail = error.reason if written.kind.kind == "Secret" else str(error)
    verb = "Create" if creates else "Delete" if isinstance(write, Delete) else "Update"
    return Rejection(f"Failed{verb}", f"Failed to {verb.lower()} {written}: {detail}")


def _target(write: Write) -> Ref:
    if isinstance(write, (Patch, Delete)):
        return write.ref
    meta = write.obj["metadata"]
    return Ref(write.kind, meta.get("name", ""), meta.get("namespace", ""))
