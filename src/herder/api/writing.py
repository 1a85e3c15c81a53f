"""Writes as the smallest difference between what is there and what is wanted, so that nothing is written twice."""

from __future__ import annotations

from typing import Any

from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Delete, Patch, Ref

PROGRESS_PATIENCE = 2.0
"""Seconds that a report of mere progress waits for more of it: what goes quickly is told once."""


def ref(kind: Kind, obj: Object) -> Ref:
    meta = obj["metadata"]
    return Ref(kind, meta["name"], meta.get("namespace", ""))


def appliable(wanted: Object, there: Object) -> Object:
    """What of it can be applied now. Where the last entry of a mapping goes and the mapping itself is to stay, API
    servers leave null, which no schema takes: such a mapping goes as a whole, and comes back empty with the next write.
    """
    found: Object = {}
    for key, value in wanted.items():
        known = there.get(key)
        if isinstance(value, dict) and isinstance(known, dict):
            value = appliable(value, known)
            if not value and known:
                continue
        found[key] = value
    return found


def difference(before: Any, after: Any) -> Any:
    """The merge patch that makes `after` of `before`; an empty dict where nothing differs."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return after
    patch: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        if name not in before:
            patch[name] = value
        elif before[name] != value:
            patch[name] = difference(before[name], value)
    return patch


def status_patch(kind: Kind, obj: Object, status: Object, reason: str, *, patience: float = 0.0) -> tuple[Patch, ...]:
    """Bring the status to what it should be; nothing where it is so already.

    Condition lists have several writers and a merge patch replaces lists whole, so a patch that holds a list is
    refused if the object has changed since it was read.
    """
    changes = difference(obj.get("status") or {}, status)
    if not changes:
        return ()
    locked = obj["metadata"]["resourceVersion"] if _holds_list(changes) else ""
    return (Patch(ref(kind, obj), {"status": changes}, reason, "status", locked, patience=patience),)


def object_patch(kind: Kind, obj: Object, wanted: Object, reason: str) -> tuple[Patch, ...]:
    """Bring spec and metadata to those of `wanted`; lists (finalizers, owners) are locked as above."""
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
    """Indexer: the UIDs of all owners, controlling or not."""
    return [str(each.get("uid")) for each in obj["metadata"].get("ownerReferences") or ()]


def with_owner(obj: Object, reference: Object) -> Object:
    """A copy of the object with this owner: in place of one of the same uid, and of another controller if it is one."""
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
