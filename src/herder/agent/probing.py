"""What is known of a plan's probes: rounds of questions, and the health that follows from the answers."""

from typing import Dict, List, Set

from herder.agent import outputs, rules
from herder.agent.events import Data, Probed, StartProbe
from herder.agent.outputs import ProbeStatus
from herder.agent.plan import Probe

EAGER_SECONDS = 0.5  # after a run; twice as long each time, until it is the ordinary period


class Probing:
    """One round at a time, of all probes; answers to a round that was given up are not heard."""

    def __init__(self) -> None:
        self.next_round = 0.0  # steady
        self._probes: List[Probe] = []
        self._statuses: Dict[str, ProbeStatus] = {}
        self._errors: Dict[str, str] = {}
        self._round = 0
        self._asked: Set[str] = set()
        self._first_after_run = False
        self._eager = 0.0  # seconds until the next round, for as long as what was started is not up; 0: the period

    def watch(self, probes: List[Probe], data: Data) -> None:
        """From now on these, from where the Secret says they are."""
        reported = _reported_probes(data)
        self._probes = probes
        self._statuses = {probe.name: reported.get(probe.name, ProbeStatus()) for probe in probes}
        self._errors = {}
        self.stop()

    def stop(self) -> None:
        self._round += 1
        self._asked = set()
        self.next_round = 0.0

    def after_run(self) -> None:
        """What was just started is given the time it asked for, and then looked at often: people wait for it."""
        self._first_after_run = True
        self._eager = EAGER_SECONDS

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
        self._statuses[probe.name] = rules.probe_answered(probe, self._statuses[probe.name], event.succeeded)
        self._errors[probe.name] = event.error
        if not self._asked:
            self.next_round = steady + self._pause(period)

    def _pause(self, period: float) -> float:
        if not self._eager or self._eager >= period or all(each.healthy for each in self._statuses.values()):
            self._eager = 0.0
            return period
        pause, self._eager = self._eager, self._eager * 2
        return pause

    def told_in(self, data: Data, always: bool = False) -> Data:
        """The data with what is worth telling."""
        if always or rules.worth_reporting(self._probes, _reported_probes(data), self._statuses):
            return rules.with_probes(data, self._statuses, self._errors)
        return data


def _reported_probes(data: Data) -> Dict[str, ProbeStatus]:
    return outputs.probe_statuses_from(data.get(rules.PROBE_STATUSES, b""))
