"""Plans from files of a directory, `*.plan`: looked at when the kernel tells of them, or when there is more to do."""

import os
import threading
import time
from contextlib import closing
from typing import Dict, List, Optional, Set, Union

from herder.agent.hands import Hands
from herder.agent.log import Log
from herder.agent.plan import PlanError
from herder.agent.positions import POSITION, Positions, Waiting
from herder.agent.watching import Bell, Interval, Touched, Tree, Unwatchable

_PERIOD = 5.0
_PERIODS_UNTOLD = 12  # then everything is looked at: the kernel does not tell of all
_PATIENCE_AT_STOP = 30.0
_PLAN, _SKIP = ".plan", ".skip"


class Local:
    def __init__(self, directory: str, hands: Hands, log: Log, period: float = _PERIOD) -> None:
        """`period`: seconds between rounds of probes, between attempts, and between looks where nobody tells."""
        self._directory = directory
        self._hands = hands
        self._log = log
        self._period = period
        self._bell = Bell()
        self._positions = Positions(hands, log, self._bell, period)
        self._due: Dict[str, float] = {}  # when plans are looked at though nobody has touched them
        self._said_why = False

    def run(self) -> None:
        """Until `stop`."""
        with closing(self._bell):
            os.makedirs(self._directory, 0o700, exist_ok=True)
            while not self._bell.is_rung():
                with closing(self._watch()) as watch:
                    self._follow(watch)
        self._hands.abandon()

    def stop(self) -> None:
        """An instruction that runs gets half a minute to end; else it is ended, and counts as failed."""
        self._bell.ring()
        overdue = threading.Timer(_PATIENCE_AT_STOP, self._hands.abandon)
        overdue.daemon = True
        overdue.start()

    def _watch(self) -> Union[Tree, Interval]:
        try:
            return Tree(self._directory, _PERIODS_UNTOLD * self._period, self._bell)
        except Unwatchable as error:
            if not self._said_why:
                self._said_why = True
                how = f"looking for plans every {self._period:g} s"
                self._log.say("warning", f"{self._directory}: inotify is not available ({error}); {how}")
            return Interval(self._period, self._bell)

    def _follow(self, watch: Union[Tree, Interval]) -> None:
        """Everything, then what is touched or due, until everything may have changed."""
        self._look_at_all(plans_in(self._directory))
        while not self._bell.is_rung():
            touched = watch.wait(self._time_left())
            if touched is None:
                return
            concerned = self._concerned(touched) | self._take_due()
            if concerned:
                self._look_at_all([path for path in plans_in(self._directory) if path in concerned])

    def _concerned(self, touched: List[Touched]) -> Set[str]:
        """A plan that was only just made is taken when it is closed, which is told; or later, as links are not."""
        concerned: Set[str] = set()
        for path, whole in touched:
            stem, kind = os.path.splitext(path)
            if kind == _SKIP:  # speaks of plans in all folders
                concerned.update(plans_in(self._directory))
            elif kind == _PLAN and not whole:
                self._due.setdefault(path, time.monotonic() + self._period)
            elif kind in (_PLAN, POSITION):
                concerned.add(stem + _PLAN)
        return concerned

    def _time_left(self) -> Optional[float]:
        return min(self._due.values()) - time.monotonic() if self._due else None

    def _take_due(self) -> Set[str]:
        """Those that are still there will be due again."""
        now = time.monotonic()
        taken = {path for path, due in self._due.items() if due <= now}
        for path in taken:
            del self._due[path]
        return taken

    def _look_at_all(self, paths: List[str]) -> None:
        for path in paths:
            if not self._bell.is_rung():
                self._look_at(path)
        self._hands.tidy()

    def _look_at(self, path: str) -> None:
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
    """In the order of their paths, without those that are hidden or have a file beside them that says to skip them."""
    found: List[str] = []
    skipped: Set[str] = set()
    for folder, _, names in os.walk(directory):
        for name in names:
            if name.endswith(_SKIP):
                skipped.add(name[: -len(_SKIP)])
            elif name.endswith(_PLAN) and not name.startswith("."):
                found.append(os.path.join(folder, name))
    return sorted(path for path in found if os.path.basename(path) not in skipped)
