"""State of a plan's probes: rounds of requests, and the health derived from their results."""

from typing import Dict, List, Set

from herder.agent.core import outputs, protocol
from herder.agent.core.events import Data, Probed, StartProbe
from herder.agent.core.outputs import ProbeStatus
from herder.agent.core.plan import Probe

EAGER_SECONDS = 0.5  # first delay after a run; doubled each time up to the configured period


class Probing:
    """Runs one round of all probes at a time; results of an abandoned round are ignored."""

    def __init__(self) -> None:
        self.next_round = 0.0  # monotonic
        self._probes: List[Probe] = []
        self._statuses: Dict[str, ProbeStatus] = {}
        self._errors: Dict[str, str] = {}
        self._service = ("", "")  # unit and state of a failing service
        self._round = 0
        self._asked: Set[str] = set()
        self._first_after_run = False
        self._startup_delay = 0.0  # seconds until the next round while services start; 0: the configured period

    def watch(self, probes: List[Probe], data: Data) -> None:
        """Watch these probes, starting with the statuses in the Secret."""
        reported = _reported_probes(data)
        self._probes = probes
        self._statuses = {probe.name: reported.get(probe.name, ProbeStatus()) for probe in probes}
        self._errors = {}
        self._service = ("", "")
        self.stop()

    def stop(self) -> None:
        self._round += 1
        self._asked = set()
        self.next_round = 0.0

    def after_run(self) -> None:
        """After a run, wait for the initial delay and then probe frequently, because users wait for the result."""
        self._first_after_run = True
        self._startup_delay = EAGER_SECONDS

    @property
    def under_way(self) -> bool:
        return bool(self._asked)

    @property
    def wanted(self) -> bool:
        return bool(self._probes)

    def start_round(self) -> List[StartProbe]:
        self._round += 1
        self._asked = {probe.name for probe in self._probes}
        delayed, self._first_after_run = self._first_after_run, False
        return [StartProbe(self._round, probe, probe.initial_delay if delayed else 0) for probe in self._probes]

    def take(self, event: Probed, steady: float, period: float) -> None:
        if event.round != self._round or event.name not in self._asked:
            return
        self._asked.discard(event.name)
        probe = next(each for each in self._probes if each.name == event.name)
        self._statuses[probe.name] = protocol.probe_answered(probe, self._statuses[probe.name], event.succeeded)
        self._errors[probe.name] = event.error
        self._service = event.service if not event.succeeded else self._service
        if not self._asked:
            self.next_round = steady + self._pause(period)

    def _pause(self, period: float) -> float:
        if (
            not self._startup_delay
            or self._startup_delay >= period
            or all(each.healthy for each in self._statuses.values())
        ):
            self._startup_delay = 0.0
            return period
        pause, self._startup_delay = self._startup_delay, self._startup_delay * 2
        return pause

    def with_changes(self, data: Data, always: bool = False) -> Data:
        """Return the data with reportable changes."""
        is_healthy = all(each.healthy for each in self._statuses.values())
        service = ("", "") if is_healthy else self._service
        is_news = protocol.is_service_news(data, service)
        if always or is_news or protocol.worth_reporting(self._probes, _reported_probes(data), self._statuses):
            return protocol.with_probes(data, self._statuses, self._errors, service)
        return data


def _reported_probes(data: Data) -> Dict[str, ProbeStatus]:
    return outputs.probe_statuses_from(data.get(protocol.PROBE_STATUSES, b""))
