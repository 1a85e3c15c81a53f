"""Example controller with everything that the real ones do.

It creates children, updates them one at a time with a pause, requests an effect (a random key), reports what it waits
for, and cleans up in order on deletion.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta

from herder.api.example import CONFIG_MAP, CONTENT_LABEL, FINALIZER, FLOCK, FLOCK_LABEL, SECRET
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Apply, Decision, Delete, Effect, Patch, Ref, Wait, waiting
from herder.engine.runtime.handlers import Watches, changed, owner
from herder.engine.runtime.view import View

CHANGED_AT = "examples.herder.io/changed-at"


def reconcile(view: View) -> Decision:
    flock = view.get(FLOCK, view.name)
    if flock is None:
        return DONE
    if flock["metadata"].get("deletionTimestamp"):
        return _remove(flock, view)
    if FINALIZER not in (flock["metadata"].get("finalizers") or []):
        return _add_finalizer(flock)
    key = _ensure_key(flock, view)
    if key is not None:
        return key
    return _scale_members(flock, view)


def _add_finalizer(flock: Object) -> Decision:
    finalizers = [*(flock["metadata"].get("finalizers") or []), FINALIZER]
    return Decision(writes=(_patch_finalizers(flock, finalizers, "members must be removed before the flock"),))


def _ensure_key(flock: Object, view: View) -> Decision | None:
    """Create the key's Secret once. An effect generates the key; its result is kept for some minutes."""
    name = f"{view.name}-key"
    if view.get(SECRET, name) is not None:
        return None
    wanted = (flock["metadata"]["uid"], "key")
    result = view.result(wanted)
    if result is None or not result.done:
        effect = Effect("random-key", wanted, {"bytes": 32}, "generate the key of the flock")
        return Decision(effects=(effect,), wait=Wait(result.error if result else "waiting for the key to be generated"))
    secret = _child(flock, SECRET.api_version, SECRET.kind, name) | {"type": "Opaque", "data": {"key": result.value}}
    return Decision(writes=(Apply(SECRET, secret, "keep the flock's key"),))


def _scale_members(flock: Object, view: View) -> Decision:
    size = flock["spec"]["size"]
    members = {obj["metadata"]["name"]: obj for obj in view.owned(CONFIG_MAP, flock["metadata"]["uid"])}
    wanted = {obj["metadata"]["name"]: obj for obj in (_member(flock, i, view.now) for i in range(size))}
    missing = [obj for name, obj in wanted.items() if name not in members]
    if missing:
        writes = tuple(Apply(CONFIG_MAP, obj, "the flock is too small") for obj in missing)
        return Decision(writes=writes) + _status(flock, len(members), 0, "Growing", "")
    surplus = sorted(name for name in members if name not in wanted)
    if surplus:
        last = _delete(members[surplus[-1]], "the flock is too large")
        return Decision(writes=(last,)) + _status(flock, len(members), 0, "Shrinking", "")
    return _roll_out(flock, wanted, members, view.now)


def _roll_out(flock: Object, wanted: dict[str, Object], members: dict[str, Object], now: datetime) -> Decision:
    """Update one member at a time, with a pause after each."""
    stale = sorted(name for name in wanted if _content(members[name]) != _content(wanted[name]))
    fresh = len(wanted) - len(stale)
    if not stale:
        return _status(flock, len(members), fresh, "Ready", "")
    pause = timedelta(seconds=flock["spec"].get("pauseSeconds", 0))
    ready_at = max((_changed_at(obj) for obj in members.values()), default=now) + pause
    if pause and ready_at > now:
        reason = f"{stale[0]} is changed next, after a pause"
        status = _status(flock, len(members), fresh, "Rolling", reason)
        return status + waiting(reason, Ref(CONFIG_MAP, stale[0], flock["metadata"]["namespace"]), wake_at=ready_at)
    changed_member = Apply(CONFIG_MAP, wanted[stale[0]], "the message changed")
    return Decision(writes=(changed_member,)) + _status(flock, len(members), fresh, "Rolling", "")


def _remove(flock: Object, view: View) -> Decision:
    if FINALIZER not in (flock["metadata"].get("finalizers") or []):
        return DONE
    members = view.owned(CONFIG_MAP, flock["metadata"]["uid"])
    if members:
        return Decision(
            writes=(_delete(members[-1], "its flock is being deleted"),), wait=Wait("deleting members, last first")
        )
    left = [name for name in flock["metadata"]["finalizers"] if name != FINALIZER]
    return Decision(writes=(_patch_finalizers(flock, left, "all members are deleted"),))


def _patch_finalizers(flock: Object, finalizers: list[str], reason: str) -> Patch:
    meta = flock["metadata"]
    ref = Ref(FLOCK, meta["name"], meta["namespace"])
    return Patch(ref, {"metadata": {"finalizers": finalizers}}, reason, resource_version=meta["resourceVersion"])


def _member(flock: Object, number: int, now: datetime) -> Object:
    message = flock["spec"].get("message", "")
    obj = _child(flock, CONFIG_MAP.api_version, CONFIG_MAP.kind, f"{flock['metadata']['name']}-{number}")
    obj["metadata"]["labels"][CONTENT_LABEL] = hashlib.sha256(message.encode()).hexdigest()[:16]
    obj["metadata"]["annotations"] = {CHANGED_AT: now.strftime("%Y-%m-%dT%H:%M:%SZ")}
    obj["data"] = {"message": message}
    return obj


def _child(flock: Object, api_version: str, kind: str, name: str) -> Object:
    meta = flock["metadata"]
    reference = {
        "apiVersion": FLOCK.api_version,
        "kind": FLOCK.kind,
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    labels = {FLOCK_LABEL: meta["name"]}
    metadata = {"name": name, "namespace": meta["namespace"], "labels": labels, "ownerReferences": [reference]}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def _content(member: Object) -> tuple[str, str]:
    """What identifies a stale member: the label for selectors, the message in case someone edits it."""
    label = (member["metadata"].get("labels") or {}).get(CONTENT_LABEL, "")
    return label, (member.get("data") or {}).get("message", "")


def _changed_at(member: Object) -> datetime:
    stamp = (member["metadata"].get("annotations") or {}).get(CHANGED_AT) or member["metadata"]["creationTimestamp"]
    return datetime.fromisoformat(stamp)


def _delete(member: Object, reason: str) -> Delete:
    meta = member["metadata"]
    return Delete(Ref(CONFIG_MAP, meta["name"], meta["namespace"]), meta["uid"], reason)


def _status(flock: Object, members: int, fresh: int, phase: str, waits_for: str) -> Decision:
    meta = flock["metadata"]
    status = {
        "observedGeneration": meta["generation"],
        "members": members,
        "upToDate": fresh,
        "phase": phase,
        "waitingFor": waits_for,
    }
    obj = {
        "apiVersion": FLOCK.api_version,
        "kind": FLOCK.kind,
        "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
        "status": status,
    }
    return Decision(writes=(Apply(FLOCK, obj, "update the Flock status", subresource="status"),))


CONTROLLER = Controller(
    name="flock",
    kind=FLOCK,
    reconcile=reconcile,
    watches=(
        Watches(CONFIG_MAP, owner(FLOCK), changed("data", "metadata.labels", "metadata.deletionTimestamp")),
        Watches(SECRET, owner(FLOCK), changed("metadata.deletionTimestamp")),
    ),
    predicate=changed("spec", "metadata.finalizers", "metadata.deletionTimestamp"),
)
