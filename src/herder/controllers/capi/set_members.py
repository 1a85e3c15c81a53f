"""Machines owned by MachineSets, counted and listed through indexes.

A status update must cost the same for a MachineSet of any size: healthy Machines are only counted, and only Machines
that a condition message names are listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from herder.api.capi.conditions import (
    Condition,
    Reasons,
    aggregate,
    condition,
    find,
    find_legacy,
    is_false,
    is_true,
)
from herder.api.capi.kinds import MACHINE, MACHINE_SET
from herder.api.capi.membership import MEMBERS, cluster_name, member_keys, members_key, of_same_cluster
from herder.api.capi.names import is_deleting
from herder.engine.control.cache import Indexer
from herder.engine.meta.kinds import Object
from herder.engine.runtime.view import View

UNREADY = "set-unready"
UNAVAILABLE = "set-unavailable"
NOT_UP_TO_DATE = "set-not-up-to-date"
DELETING = "set-deleting"
UNHEALTHY = "set-unhealthy"
NODE_READY = "set-node-ready"
LEGACY_READY = "set-legacy-ready"
LEGACY_UNREADY = "set-legacy-unready"
RUNNING_A_VERSION = "set-running-a-version"
VERSION = "set-version"  # by "<owner and Cluster>/<version>"

FLICKER_SECONDS = 10
"""Grace period in which a new Machine may lack the UpToDate condition without being reported."""
STALE_MINUTES = 15
SLOW_DRAIN_MINUTES = 5
NAMES_SHOWN = 3


def owned_where(applies: Callable[[Object], bool]) -> Indexer:
    """Indexer by owner and Cluster of the Machines for which `applies` holds."""

    def index(machine: Object) -> Iterable[str]:
        return member_keys(machine) if applies(machine) else ()

    return index


def _legacy_ready_is(machine: Object, good: bool) -> bool:
    found = find_legacy(machine, "Ready")
    return found is not None and (found.get("status") == "True") is good


def kubelet_version(machine: Object) -> str:
    return str(((machine.get("status") or {}).get("nodeInfo") or {}).get("kubeletVersion") or "")


def _by_version(machine: Object) -> Iterable[str]:
    version = kubelet_version(machine)
    return [f"{owner}/{version}" for owner in member_keys(machine)] if version else ()


INDEXES: Mapping[str, Indexer] = {
    MEMBERS: member_keys,
    UNREADY: owned_where(lambda machine: not is_true(machine, "Ready")),
    UNAVAILABLE: owned_where(lambda machine: is_deleting(machine) or not is_true(machine, "Available")),
    NOT_UP_TO_DATE: owned_where(lambda machine: not is_true(machine, "UpToDate")),
    DELETING: owned_where(is_deleting),
    UNHEALTHY: owned_where(lambda machine: is_false(machine, "HealthCheckSucceeded")),
    NODE_READY: owned_where(lambda machine: is_true(machine, "NodeReady")),
    LEGACY_READY: owned_where(lambda machine: _legacy_ready_is(machine, True)),
    LEGACY_UNREADY: owned_where(lambda machine: _legacy_ready_is(machine, False)),
    RUNNING_A_VERSION: owned_where(lambda machine: bool(kubelet_version(machine))),
    VERSION: _by_version,
}


class SetMembers:
    """The Machines controlled by one MachineSet, or by all MachineSets of a MachineDeployment."""

    def __init__(self, view: View, sets: Sequence[Object]) -> None:
        self._view = view
        self._owners = [members_key(obj) for obj in sets]
        self.total = self.count(MEMBERS)

    def count(self, index: str, suffix: str = "") -> int:
        return sum(self._view.count(MACHINE, (index, owner + suffix)) for owner in self._owners)

    def listed(self, index: str = MEMBERS) -> list[Object]:
        return [machine for owner in self._owners for machine in self._view.select(MACHINE, index=(index, owner))]

    def versions(self, expected: Iterable[str]) -> dict[str, int]:
        """Number of Machines by kubelet version.

        The expected versions are counted by index; the Machines are listed only if those counts do not add up.
        """
        counts = {version: self.count(VERSION, f"/{version}") for version in expected if version}
        if sum(counts.values()) != self.count(RUNNING_A_VERSION):
            running = [kubelet_version(machine) for machine in self.listed(RUNNING_A_VERSION)]
            counts = {version: running.count(version) for version in running}
        return {version: count for version, count in counts.items() if count}


def sets_of(view: View, deployment: Object) -> list[Object]:
    """Return the MachineSets that a MachineDeployment controls in its Cluster."""
    return of_same_cluster(view.owned(MACHINE_SET, deployment["metadata"]["uid"]), cluster_name(deployment))


# --- conditions -----------------------------------------------------------------------------------------------------


def machines_ready(members: SetMembers) -> Condition:
    none = condition("MachinesReady", "True", "NoReplicas" if not members.total else "Ready")
    reasons = Reasons("NotReady", "ReadyUnknown", "Ready")
    return aggregate("MachinesReady", members.listed(UNREADY), "Ready", reasons=reasons, none=none)


def machines_up_to_date(members: SetMembers, now: datetime) -> tuple[Condition, datetime | None]:
    """The MachinesUpToDate condition, and when to check again for Machines that are still in their grace period."""
    outdated = [(up_to_date_expected_at(machine), machine) for machine in members.listed(NOT_UP_TO_DATE)]
    too_new = [at for at, _ in outdated if at > now]
    asked = [machine for at, machine in outdated if at <= now]
    none = condition("MachinesUpToDate", "True", "NoReplicas" if members.total == len(too_new) else "UpToDate")
    reasons = Reasons("NotUpToDate", "UpToDateUnknown", "UpToDate")
    aggregated = aggregate("MachinesUpToDate", asked, "UpToDate", reasons=reasons, none=none)
    return aggregated, min(too_new, default=None)


def up_to_date_expected_at(machine: Object) -> datetime:
    """Time from which a Machine without an UpToDate condition is reported; its creation if it has one."""
    created = moment(machine["metadata"].get("creationTimestamp") or "1970-01-01T00:00:00Z")
    return created if find(machine, "UpToDate") else created + timedelta(seconds=FLICKER_SECONDS)


def remediating(members: SetMembers, by: str) -> Condition:
    unhealthy = members.listed(UNHEALTHY)
    handled = [machine for machine in unhealthy if awaits_owner_remediation(machine)]
    if not handled:
        message = _named(unhealthy, f"not healthy (not to be remediated by {by})") if unhealthy else ""
        return condition("Remediating", "False", "NotRemediating", message)
    reasons = Reasons("Remediating", "Remediating", "Remediating")
    none = condition("Remediating", "False", "NotRemediating")
    aggregated = aggregate("Remediating", handled, "OwnerRemediated", reasons=reasons, none=none)
    return {**aggregated, "status": "True"}


def awaits_owner_remediation(machine: Object) -> bool:
    return is_false(machine, "HealthCheckSucceeded") and is_false(machine, "OwnerRemediated")


def slow_deletions(members: SetMembers, now: datetime) -> tuple[str, datetime | None]:
    """Message about Machines whose deletion takes too long, with the likely causes, and when the next one qualifies."""
    going = members.listed(DELETING)
    since = {machine["metadata"]["name"]: _slow_from(machine) for machine in going}
    old = [machine for machine in going if since[machine["metadata"]["name"]] < now]
    look_again = min((at for at in since.values() if at >= now), default=None)
    if not old:
        return "", look_again
    causes = [
        cause for phrase, cause in _DELAYS.items() if any(_drain_reports(machine, phrase, now) for machine in old)
    ]
    message = _named(old, f"in deletion since more than {STALE_MINUTES}m")
    return f"{message}, delay likely due to {', '.join(causes)}" if causes else message, look_again


def _slow_from(machine: Object) -> datetime:
    return moment(machine["metadata"]["deletionTimestamp"]) + timedelta(minutes=STALE_MINUTES)


_DELAYS = {
    "cannot evict pod as it would violate the pod's disruption budget.": "PodDisruptionBudgets",
    "deletionTimestamp set, but still not removed from the Node": "Pods not terminating",
    "failed to evict Pod": "Pod eviction errors",
    "waiting for completion": "Pods not completed yet",
}


def _drain_reports(machine: Object, phrase: str, now: datetime) -> bool:
    status = find(machine, "Deleting") or {}
    started: str = ((machine.get("status") or {}).get("deletion") or {}).get("nodeDrainStartTime") or ""
    slow_message = bool(started) and moment(started) < now - timedelta(minutes=SLOW_DRAIN_MINUTES)
    draining = status.get("status") == "True" and status.get("reason") == "DrainingNode"
    return slow_message and draining and phrase in status.get("message", "")


def _named(machines: Sequence[Object], state: str) -> str:
    names = sorted(machine["metadata"]["name"] for machine in machines)
    more = f", ... ({len(names) - NAMES_SHOWN} more)" if len(names) > NAMES_SHOWN else ""
    one = len(names) == 1
    return f"Machine{'' if one else 's'} {', '.join(names[:NAMES_SHOWN])}{more} {'is' if one else 'are'} {state}"


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
