"""v1beta1 conditions, which have a severity when false and need no reason when true."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

from herder.api.capi.conditions.lists import Condition, find, timestamp
from herder.engine.meta.kinds import Object

READY = "Ready"
ERROR, WARNING, INFO = "Error", "Warning", "Info"

_STATE = ("status", "reason", "severity", "message")


def legacy(type_: str, status: str, reason: str = "", severity: str = "", message: str = "") -> Condition:
    fields = {"type": type_, "status": status, "severity": severity, "reason": reason, "message": message}
    return {name: value for name, value in fields.items() if value}


def find_legacy(obj: Object | None, type_: str) -> Condition | None:
    return next((known for known in _list(obj) if known.get("type") == type_), None)


def merged_legacy(
    existing: Iterable[Condition] | None, wanted: Iterable[Condition], now: datetime, *, drop: Iterable[str] = ()
) -> list[Condition]:
    """Merge conditions like `merged` does for v1beta2; here a change of any field counts as a transition."""
    known = {old["type"]: old for old in existing or ()}
    dropped = set(drop)
    result = {type_: old for type_, old in known.items() if type_ not in dropped}
    for new in wanted:
        old = known.get(new["type"])
        if old is None:
            since = new.get("lastTransitionTime") or timestamp(now)
        elif all(old.get(field, "") == new.get(field, "") for field in _STATE):
            since = old.get("lastTransitionTime") or timestamp(now)
        else:
            since = timestamp(now)
        result[new["type"]] = {**new, "lastTransitionTime": since}
    return sorted(result.values(), key=lambda known: (known["type"] != READY, known["type"]))


def legacy_mirror(source: Object | None, target_type: str, *, fallback: Condition) -> Condition:
    """Mirror the source's Ready condition under another type.

    v1beta1 providers keep it in their only list. A false condition without severity, as in v1beta2, gets severity Info.
    """
    found = find_legacy(source, READY) or find(source, READY)
    if found is None:
        return {**fallback, "type": target_type}
    severity = found.get("severity") or (INFO if found.get("status") == "False" else "")
    fields = legacy(target_type, found.get("status", ""), found.get("reason", ""), severity, found.get("message", ""))
    since = found.get("lastTransitionTime")
    return fields | {"lastTransitionTime": since} if since else fields


def legacy_summary(
    conditions: Iterable[Condition], types: Sequence[str], *, counted: Collection[str] = ()
) -> Condition | None:
    """Summarize the conditions of these types as Ready, earlier types taking precedence; None if there are none.

    If all of them are in `counted`, the message is the number of true ones.
    """
    scope = [known for known in conditions if known["type"] in types]
    message = None
    if counted and all(known["type"] in counted for known in scope):
        message = _counter(scope, len(counted))
    return _worst(READY, [(types.index(known["type"]), known, known.get("reason", "")) for known in scope], message)


def legacy_aggregate(type_: str, objects: Sequence[Object]) -> Condition | None:
    """Aggregate the Ready conditions of objects: the reason of the worst one, with its object; None if none has any."""
    scope = [(obj, found) for obj in objects if (found := find_legacy(obj, READY)) is not None]
    by_name = sorted(scope, key=lambda each: str(each[0]["metadata"]["name"]))
    ranked = [(place, found, _localized(found, obj)) for place, (obj, found) in enumerate(by_name)]
    return _worst(type_, ranked, _counter([found for _, found in scope], len(objects)))


def _worst(type_: str, ranked: Iterable[tuple[int, Condition, str]], message: str | None) -> Condition | None:
    """Return a condition for the most severe entry; among equals the lowest rank wins."""
    found = min(ranked, key=lambda each: (_severity(each[1]), each[0]), default=None)
    if found is None:
        return None
    _, worst, reason = found
    if worst["status"] == "True":
        return legacy(type_, "True")
    text = worst.get("message", "") if message is None else message
    return legacy(type_, worst["status"], reason, worst.get("severity", ""), text)


def _severity(known: Condition) -> int:
    match known.get("status"), known.get("severity"):
        case "False", "Error":
            return 0
        case "False", "Warning":
            return 1
        case "False", _:
            return 2
        case "True", _:
            return 3
    return 4


def _counter(scope: Iterable[Condition], of: int) -> str:
    return f"{sum(known.get('status') == 'True' for known in scope)} of {of} completed"


def _localized(found: Condition, obj: Object) -> str:
    reason: str = found.get("reason", "")
    return reason if "@" in reason else f"{reason} @ {obj.get('kind', '')}/{obj['metadata']['name']}"


def _list(obj: Object | None) -> list[Condition]:
    deprecated = ((obj or {}).get("status") or {}).get("deprecated") or {}
    conditions: list[Condition] = (deprecated.get("v1beta1") or {}).get("conditions") or []
    return conditions
