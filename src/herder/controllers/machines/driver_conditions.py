"""Status conditions of a NodeDriver: Downloaded, Installed, Active, Inactive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from herder.api.capi.conditions import Condition, condition
from herder.api.machines.conditions import merged_with_updates
from herder.api.machines.drivers import known
from herder.api.machines.drivers.admission import is_active, still_used_message
from herder.engine.meta.kinds import Object

DOWNLOADED, INSTALLED, ACTIVE, INACTIVE = "Downloaded", "Installed", "Active", "Inactive"
DOWNLOADING = "downloading the driver and reading its create flags"


@dataclass(frozen=True, slots=True)
class State:
    """Result of a pass; all defaults if the driver is inactive and nothing was checked."""

    installed: bool = False
    pending: bool = False
    problem: str = ""
    version: str = ""  # version of the machine CLI that contains the driver
    remaining: Sequence[str] = ()  # remaining objects of the kinds of a driver that is being removed

    def waits_for(self, driver: str) -> str:
        """What the NodeDriver waits for; empty if nothing."""
        if self.remaining:
            return still_used_message(driver, self.remaining)
        return self.problem or (DOWNLOADING if self.pending else "")


def driver_status(node_driver: Object, state: State, now: datetime) -> Object:
    """Compute the status."""
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
    yield _active(wanted=wanted, state=state)
    yield _inactive(known.driver_name(node_driver), wanted=wanted, state=state)


def _active(*, wanted: bool, state: State) -> Condition:
    if wanted and state.installed:
        return condition(ACTIVE, "True", "Active")
    if wanted:
        return condition(ACTIVE, "False", "NotInstalled", state.problem or DOWNLOADING)
    return condition(ACTIVE, "False", "Deactivated")


def _inactive(driver: str, *, wanted: bool, state: State) -> Condition:
    if state.remaining:
        return condition(INACTIVE, "False", "ObjectsLeft", still_used_message(driver, state.remaining))
    return condition(INACTIVE, "False", "Active") if wanted else condition(INACTIVE, "True", "Deactivated")
