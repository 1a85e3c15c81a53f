"""Finalizers of other controllers, which keep a deleted object until someone removes them."""

from __future__ import annotations

from collections.abc import Collection

from herder.api.capi.names import is_deleting
from herder.engine.meta.kinds import Object

OF_KUBERNETES = frozenset({"foregroundDeletion", "orphan"})


def blocking_finalizers(obj: Object, own: Collection[str]) -> list[str]:
    """Finalizers that alone keep a deleted object; empty while one of `own` or of Kubernetes is left."""
    finalizers = list(obj["metadata"].get("finalizers") or ())
    waits_for_us = any(each in own or each in OF_KUBERNETES for each in finalizers)
    return finalizers if is_deleting(obj) and not waits_for_us else []


def blocked_message(finalizers: Collection[str]) -> str:
    """What the deletion waits for."""
    names = ", ".join(f'"{each}"' for each in finalizers)
    return f"finalizer {names} of another controller blocks the deletion; remove it from metadata.finalizers"


def manager_of(obj: Object, finalizer: str) -> str:
    """The field manager that set a finalizer; "" if unknown."""
    for entry in obj["metadata"].get("managedFields") or ():
        fields = ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:finalizers") or {}
        if f'v:"{finalizer}"' in fields:
            return str(entry.get("manager") or "")
    return ""
