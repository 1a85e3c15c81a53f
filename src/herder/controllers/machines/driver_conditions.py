"""What a NodeDriver tells of itself: whether its driver is there, and whether it is in use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from herder.api.capi.conditions import Condition, condition
from herder.api.machines import known
from herder.api.machines.conditions import merged_with_updates
from herder.api.machines.driver_admission import is_active, needed_by
from herder.engine.meta.kinds import Object

DOWNLOADED, INSTALLED, ACTIVE, INACTIVE = "Downloaded", "Installed", "Active", "Inactive"
DOWNLOADING = "the driver is downloaded and asked what it can be told"


@dataclass(frozen=True, slots=True)
class State:
    """What a pass found out. Nothing at all: the driver is not wanted, so nobody looked."""

    installed: bool = False
    pending: bool = False
    problem: str = ""
    version: str = ""  # of the machine program that has it
    left: Sequence[str] = ()  # objects of its kinds, of a driver that is to go

    def waits_for(self, driver: str) -> str:
        """Why nothing more happens, for who asks."""
        if self.left:
            return needed_by(driver, self.left)
        return self.problem or (DOWNLOADING if self.pending else "")


def told(node_driver: Object, state: State, now: datetime) -> Object:
    """The status."""
    before = node_driver.get("status") or {}
    conditions = merged_with_updates(before.get("conditions"), _conditions(node_driver, state), now)
    return {**before, **_applied(node_driver, state), "conditions": conditions}


def _applied(node_driver: Object, state: State) -> Object:
    spec = node_driver.get("spec") or {}
    if not state.installed:
        return {}
    if known.is_built_in(node_driver):
        return {"appliedDockerMachineVersion": state.version} if state.version else {}
    return {"appliedURL": spec.get("url", ""), "appliedChecksum": spec.get("checksum", "")}


def _conditions(node_driver: Object, state: State) -> Iterable[Condition]:
    for type_ in (DOWNLOADED, INSTALLED):
        if state.installed:
            yield condition(type_, "True", type_)
        elif state.problem:
            yield condition(type_, "False", "Error", state.problem)
        elif state.pending:
            yield condition(type_, "Unknown", "Downloading", DOWNLOADING)
    wanted = is_active(node_driver) and not node_driver["metadata"].get("deletionTimestamp")
    yield _usable(wanted=wanted, state=state)
    yield _unused(known.driver_name(node_driver), wanted=wanted, state=state)


def _usable(*, wanted: bool, state: State) -> Condition:
    if wanted and state.installed:
        return condition(ACTIVE, "True", "Active")
    if wanted:
        return condition(ACTIVE, "False", "NotInstalled", state.problem or DOWNLOADING)
    return condition(ACTIVE, "False", "Deactivated")


def _unused(driver: str, *, wanted: bool, state: State) -> Condition:
    if state.left:
        return condition(INACTIVE, "False", "ObjectsLeft", needed_by(driver, state.left))
    return condition(INACTIVE, "False", "Active") if wanted else condition(INACTIVE, "True", "Deactivated")
