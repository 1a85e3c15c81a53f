"""Build minimal writes: patches hold only the fields that differ, and nothing is written if nothing differs."""

from __future__ import annotations

from typing import Any

from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Delete, Patch, Ref

PROGRESS_DEBOUNCE = 2.0
"""Seconds by which status patches that only report progress are debounced, so that fast changes cause one write."""


def ref(kind: Kind, obj: Object) -> Ref:
    meta = obj["metadata"]
    return Ref(kind, meta["name"], meta.get("namespace", ""))


def appliable(wanted: Object, existing: Object) -> Object:
    """Return the part of `wanted` that can be applied now.

    If server-side apply removes the last entry of a mapping that itself stays, API servers store null, which the schema
    rejects. Such a mapping is left out, and added back empty by the next write.
    """
    appliable_part: Object = {}
    for key, value in wanted.items():
        current = existing.get(key)
        if isinstance(value, dict) and isinstance(current, dict):
            value = appliable(value, current)
            if not value and current:
                continue
        appliable_part[key] = value
    return appliable_part


def difference(before: Any, after: Any) -> Any:
    """Return the JSON merge patch from `before` to `after`; an empty dict if they are equal."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return after
    patch: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        if name not in before:
            patch[name] = value
        elif before[name] != value:
            patch[name] = difference(before[name], value)
    return patch


def status_patch(kind: Kind, obj: Object, status: Object, reason: str, *, debounce: float = 0.0) -> tuple[Patch, ...]:
    """Patch the status if it differs from the desired one.

    A merge patch replaces lists as a whole and condition lists have several writers, so a patch with a list carries the
    resourceVersion and fails if the object has changed since it was read.
    """
    changes = difference(obj.get("status") or {}, status)
    if not changes:
        return ()
    locked = obj["metadata"]["resourceVersion"] if _holds_list(changes) else ""
    return (Patch(ref(kind, obj), {"status": changes}, reason, "status", locked, debounce=debounce),)


def object_patch(kind: Kind, obj: Object, wanted: Object, reason: str) -> tuple[Patch, ...]:
    """Patch spec and metadata if they differ from `wanted`; patches with lists carry the resourceVersion, as above."""
    changes = {part: patch for part in ("metadata", "spec") if (patch := _part(obj, wanted, part))}
    if not changes:
        return ()
    locked = obj["metadata"]["resourceVersion"] if _holds_list(changes) else ""
    return (Patch(ref(kind, obj), changes, reason, "", locked),)


def delete(kind: Kind, obj: Object, reason: str, *, target: str = "") -> Delete:
    return Delete(ref(kind, obj), obj["metadata"]["uid"], reason, target=target)


def owner_reference(kind: Kind, obj: Object, *, controller: bool) -> Object:
    meta = obj["metadata"]
    reference: Object = {"apiVersion": kind.api_version, "kind": kind.kind, "name": meta["name"], "uid": meta["uid"]}
    return reference | {"controller": True, "blockOwnerDeletion": True} if controller else reference


def owners(obj: Object) -> list[str]:
    """Indexer: the UIDs of all owners, controllers or not."""
    return [str(each.get("uid")) for each in obj["metadata"].get("ownerReferences") or ()]


def with_owner(obj: Object, reference: Object) -> Object:
    """Return a copy of the object with this owner reference.

    It replaces a reference with the same UID and, if it is a controller reference, that of another controller.
    """
    others = [
        known
        for known in obj["metadata"].get("ownerReferences") or []
        if known.get("uid") != reference["uid"] and not (reference.get("controller") and known.get("controller"))
    ]
    return {**obj, "metadata": {**obj["metadata"], "ownerReferences": [*others, reference]}}


def _part(obj: Object, wanted: Object, part: str) -> Any:
    return difference(obj.get(part) or {}, wanted.get(part) or {})


def _holds_list(patch: Any) -> bool:
    if isinstance(patch, dict):
        return any(_holds_list(value) for value in patch.values())
    return isinstance(patch, list)
