"""How in-memory objects tell how they are, in the lists of conditions of both contracts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from herder.api.capi.conditions import Condition, condition, legacy, merged, merged_legacy
from herder.api.inmemory.behaviour import Behaviour
from herder.api.writing import difference, ref
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Patch

INVALID_ANNOTATION = "InvalidAnnotation"
NEVER_READY = "NeverReady"

_FAILURE = ("failureReason", "failureMessage")  # told anew in each pass, so that they go with their cause


def ready(message: str = "") -> Condition:
    return condition("Ready", "True", "Ready", message)


def not_ready(reason: str, message: str) -> Condition:
    return condition("Ready", "False", reason, message)


def trouble(asked: Behaviour, what: str) -> Condition | None:
    """What keeps an object from becoming ready because its annotations say so, or say nonsense."""
    if asked.fail:
        return not_ready(asked.fail, f"{what} failed, as its annotations ask for")
    if asked.problem:
        return not_ready(INVALID_ANNOTATION, asked.problem)
    if asked.never_ready:
        return not_ready(NEVER_READY, f"{what} never becomes ready, as its annotations ask for")
    return None


def health(asked: Behaviour, what: str) -> Condition:
    """Of what became ready before: a failure still counts; nonsense in an annotation is told and changes nothing."""
    return (trouble(asked, what) if asked.fail else None) or ready(asked.problem)


def failure(asked: Behaviour, conditions: Condition) -> Object:
    """The fields of a failure for good, for the status."""
    return {"failureReason": asked.fail, "failureMessage": conditions["message"]} if asked.fail else {}


def status_with(
    obj: Object,
    fields: Object,
    conditions: Sequence[Condition],
    now: datetime,
    *,
    legacy_too: Sequence[Condition] | None = None,
) -> Object:
    """The object's status with these fields and conditions in it; the older list has Ready, or what it is given."""
    before = {name: value for name, value in (obj.get("status") or {}).items() if name not in _FAILURE}
    old_list = ((before.get("deprecated") or {}).get("v1beta1") or {}).get("conditions")
    told_twice = [known for known in conditions if known["type"] == "Ready"] if legacy_too is None else legacy_too
    return {
        **before,
        **fields,
        "conditions": merged(before.get("conditions"), conditions, now),
        "deprecated": {"v1beta1": {"conditions": merged_legacy(old_list, map(_legacy, told_twice), now)}},
    }


def _legacy(known: Condition) -> Condition:
    if known["status"] == "True":
        return legacy(known["type"], "True")
    return legacy(known["type"], known["status"], known["reason"], "Info", known["message"])


def whole_patch(kind: Kind, obj: Object, wanted: Object, reason: str) -> tuple[Patch, ...]:
    """Metadata, spec and status in one write, for kinds whose status is no subresource."""
    parts = ("metadata", "spec", "status")
    changes = {part: found for part in parts if (found := difference(obj.get(part) or {}, wanted.get(part) or {}))}
    if not changes:
        return ()
    return (Patch(ref(kind, obj), changes, reason, resource_version=obj["metadata"]["resourceVersion"]),)
