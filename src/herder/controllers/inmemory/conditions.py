"""Conditions of in-memory objects, in both lists (v1beta2 and v1beta1)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from herder.api.capi.conditions import Condition, condition, legacy, merged, merged_legacy
from herder.api.inmemory.behavior import Behavior
from herder.api.writes import difference, ref
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Patch

INVALID_ANNOTATION = "InvalidAnnotation"
NEVER_READY = "NeverReady"

_FAILURE = ("failureReason", "failureMessage")  # computed in each pass, so that they disappear with their cause


def ready(message: str = "") -> Condition:
    return condition("Ready", "True", "Ready", message)


def not_ready(reason: str, message: str) -> Condition:
    return condition("Ready", "False", reason, message)


def simulated_failure(behavior: Behavior, what: str) -> Condition | None:
    """Condition of an object that its annotations keep from becoming ready, including invalid annotations."""
    if behavior.fail:
        return not_ready(behavior.fail, f"{what} failed, as its annotations ask for")
    if behavior.problem:
        return not_ready(INVALID_ANNOTATION, behavior.problem)
    if behavior.never_ready:
        return not_ready(NEVER_READY, f"{what} never becomes ready, as its annotations ask for")
    return None


def health(behavior: Behavior, what: str) -> Condition:
    """Condition of an object that was ready before: a failure counts; an invalid annotation is only reported."""
    return (simulated_failure(behavior, what) if behavior.fail else None) or ready(behavior.problem)


def failure(behavior: Behavior, conditions: Condition) -> Object:
    """Status fields of a terminal failure."""
    return {"failureReason": behavior.fail, "failureMessage": conditions["message"]} if behavior.fail else {}


def status_with(
    obj: Object,
    fields: Object,
    conditions: Sequence[Condition],
    now: datetime,
    *,
    legacy_too: Sequence[Condition] | None = None,
) -> Object:
    """The status with these fields and conditions; v1beta1 gets Ready, or `legacy_too`."""
    before = {name: value for name, value in (obj.get("status") or {}).items() if name not in _FAILURE}
    old_list = ((before.get("deprecated") or {}).get("v1beta1") or {}).get("conditions")
    mirrored = [known for known in conditions if known["type"] == "Ready"] if legacy_too is None else legacy_too
    return {
        **before,
        **fields,
        "conditions": merged(before.get("conditions"), conditions, now),
        "deprecated": {"v1beta1": {"conditions": merged_legacy(old_list, map(_legacy, mirrored), now)}},
    }


def _legacy(known: Condition) -> Condition:
    if known["status"] == "True":
        return legacy(known["type"], "True")
    return legacy(known["type"], known["status"], known["reason"], "Info", known["message"])


def object_and_status_patch(kind: Kind, obj: Object, wanted: Object, reason: str) -> tuple[Patch, ...]:
    """Metadata, spec and status in one write, for kinds without a status subresource."""
    parts = ("metadata", "spec", "status")
    changes = {part: found for part in parts if (found := difference(obj.get(part) or {}, wanted.get(part) or {}))}
    if not changes:
        return ()
    return (Patch(ref(kind, obj), changes, reason, resource_version=obj["metadata"]["resourceVersion"]),)
