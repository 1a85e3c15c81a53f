"""Apply plans from the files of a directory (`*.plan`), on inotify events or when a plan is due."""

import os
import threading
import time
from contextlib import closing
from typing import Dict, List, Optional, Set, Union

from herder.agent.apply.executor import NodeExecutor
from herder.agent.core.plan import PlanError
from herder.agent.local.inotify import Interval, StopSignal, Touched, Tree, Unwatchable
from herder.agent.local.plan_file import POSITION, Positions, Waiting
from herder.agent.log import Log

_PERIOD = 5.0
_PERIODS_UNTIL_RESCAN = 12  # then rescan everything, because inotify does not report all changes
_STOP_GRACE_PERIOD = 30.0
_PLAN, _SKIP = ".plan", ".skip"


class Local:
    def __init__(self, directory: str, executor: NodeExecutor, log: Log, period: float = _PERIOD) -> None:
        """`period`: seconds between probe rounds, retries, and scans without inotify."""
        self._directory = directory
        self._hands = executor
        self._log = log
        self._period = period
        self._bell = StopSignal()
        self._positions = Positions(executor, log, self._bell, period)
        self._due: Dict[str, float] = {}  # when unchanged plans are due again
        self._said_why = False

    def run(self) -> None:
        """Run until `stop`."""
        with closing(self._bell):
            os.makedirs(self._directory, 0o700, exist_ok=True)
            while not self._bell.is_rung():
                with closing(self._watch()) as watch:
                    self._follow(watch)
        self._hands.abandon()

    def stop(self) -> None:
        """Stop; a running instruction gets 30 seconds, then it is terminated and counts as failed."""
        self._bell.ring()
        overdue = threading.Timer(_STOP_GRACE_PERIOD, self._hands.abandon)
        overdue.daemon = True
        overdue.start()

    def _watch(self) -> Union[Tree, Interval]:
        try:
            return Tree(self._directory, _PERIODS_UNTIL_RESCAN * self._period, self._bell)
        except Unwatchable as error:
            if not self._said_why:
                self._said_why = True
                how = f"looking for plans every {self._period:g} s"
                self._log.say("warning", f"{self._directory}: inotify is not available ({error}); {how}")
            return Interval(self._period, self._bell)

    def _follow(self, watch: Union[Tree, Interval]) -> None:
        """Process all plans, then changed or due ones, until the watch becomes invalid."""
        self._process_all(plans_in(self._directory))
        while not self._bell.is_rung():
            touched = watch.wait(self._time_left())
            if touched is None:
                return
            concerned = self._affected_plans(touched) | self._take_due()
            if concerned:
                self._process_all([path for path in plans_in(self._directory) if path in concerned])

    def _affected_plans(self, touched: List[Touched]) -> Set[str]:
        """Return the affected plans. A new plan is processed when it is closed, or later, because links are
        not closed.
        """
        concerned: Set[str] = set()
        for path, whole in touched:
            stem, kind = os.path.splitext(path)
            if kind == _SKIP:  # applies to plans in all directories
                concerned.update(plans_in(self._directory))
            elif kind == _PLAN and not whole:
                self._due.setdefault(path, time.monotonic() + self._period)
            elif kind in (_PLAN, POSITION):
                concerned.add(stem + _PLAN)
        return concerned

    def _time_left(self) -> Optional[float]:
        return min(self._due.values()) - time.monotonic() if self._due else None

    def _take_due(self) -> Set[str]:
        """Return due plans; those that still exist will be due again."""
        now = time.monotonic()
        taken = {path for path, due in self._due.items() if due <= now}
        for path in taken:
            del self._due[path]
        return taken

    def _process_all(self, paths: List[str]) -> None:
        for path in paths:
            if not self._bell.is_rung():
                self._process(path)
        self._hands.tidy()

    def _process(self, path: str) -> None:
        due = self._due.pop(path, 0.0)
        is_due = due <= time.monotonic()
        pause: Optional[float] = self._period
        try:
            pause = self._positions.advance(path, is_due)
        except PlanError as error:
            self._log.say("error", f"{path}: {error}")
            pause = None
        except (OSError, Waiting) as error:
            self._log.say("warning", f"{path}: {error}")
        if pause is not None:
            again = time.monotonic() + pause
            self._due[path] = again if is_due else min(again, due)


def plans_in(directory: str) -> List[str]:
    """List plans by path, without hidden ones and those with a .skip file."""
    found: List[str] = []
    skipped: Set[str] = set()
    for folder, _, names in os.walk(directory):
        for name in names:
            if name.endswith(_SKIP):
                skipped.add(name[: -len(_SKIP)])
            elif name.endswith(_PLAN) and not name.startswith("."):
                found.append(os.path.join(folder, name))
    return sorted(path for path in found if os.path.basename(path) not in skipped)
