"""Status fields shared by MachineSets and MachineDeployments."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from herder.api.capi.conditions import Condition, merged
from herder.api.capi.versions import oldest_first
from herder.api.writes import status_patch
from herder.controllers.capi.set_members import NOT_UP_TO_DATE, UNAVAILABLE, UNREADY, SetMembers
from herder.engine.meta.kinds import Kind, Object
from herder.engine.meta.selectors import label_selector_from_object
from herder.engine.runtime.decision import REFUSED, Decision


def counters(members: SetMembers) -> Object:
    return {
        "replicas": members.total,
        "readyReplicas": members.total - members.count(UNREADY),
        "availableReplicas": members.total - members.count(UNAVAILABLE),
        "upToDateReplicas": members.total - members.count(NOT_UP_TO_DATE),
    }


def selector_text(obj: Object) -> Object:
    """`status.selector`, which the scale subresource needs."""
    selector = label_selector_from_object(obj["spec"].get("selector"))
    return {"selector": str(selector)} if selector else {}


def versions_in_use(obj: Object, members: SetMembers) -> Object:
    """`status.versions`; empty while no Machine reports a kubelet version."""
    known = [each["version"] for each in (obj.get("status") or {}).get("versions") or ()]
    wanted = obj["spec"]["template"]["spec"].get("version", "")
    versions = members.versions(dict.fromkeys([*known, wanted]))
    if not versions:
        return {}
    return {"versions": [{"version": text, "replicas": versions[text]} for text in oldest_first(versions)]}


def paused_status(kind: Kind, obj: Object, paused: Condition, now: datetime) -> Decision:
    """Report only the Paused condition; a paused object is not reconciled."""
    status = {**(obj.get("status") or {}), "conditions": observed_conditions(obj, [paused], now)}
    return Decision(writes=status_patch(kind, obj, status, "it is paused"))


def observed_conditions(obj: Object, conditions: Iterable[Condition], now: datetime) -> list[Condition]:
    known = (obj.get("status") or {}).get("conditions")
    return merged(known, conditions, now, generation=obj["metadata"].get("generation") or 0)


def earliest(*moments: datetime | None) -> datetime | None:
    return min((moment for moment in moments if moment is not None), default=None)


def with_bullets(message: str, *more: str) -> str:
    return "\n".join([message, *(f"* {each}" for each in more if each)])


def refusals_of(sets: Iterable[Object]) -> str:
    """Guard refusals that MachineSets report in their own conditions."""
    found = [
        f"MachineSet {each['metadata']['name']}: {line.removeprefix('* ')}"
        for each in sets
        for known in (each.get("status") or {}).get("conditions") or ()
        for line in (known.get("message") or "").splitlines()
        if line.startswith(f"* {REFUSED}")
    ]
    return "; ".join(dict.fromkeys(found))
