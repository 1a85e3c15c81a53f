"""The shell around the core: watches the Secret, carries out what the core asks for, tells it what came of it."""

import queue
import random
import threading
import time
from typing import Optional, Union

from herder.agent import kube, probes
from herder.agent.config import Connection
from herder.agent.core import Core
from herder.agent.events import (
    Action,
    Conflict,
    Enter,
    Event,
    Finished,
    Leave,
    Now,
    Persist,
    Probed,
    Read,
    Run,
    Say,
    SecretGone,
    SecretSeen,
    StartProbe,
    Tick,
    Unanswered,
    Write,
    WriteFiles,
    Written,
)
from herder.agent.hands import Hands
from herder.agent.journal import Journal
from herder.agent.kubeconfig import Access
from herder.agent.lane import Lane
from herder.agent.log import Log

_SHORTEST_BACKOFF, _LONGEST_BACKOFF = 0.5, 30.0
_PATIENCE_AT_STOP = 30.0
_TOO_LARGE = (413, 422)


class _Stop:
    """Comes through the queue like any event."""


class Remote:
    def __init__(
        self, access: Access, connection: Connection, strict: bool, hands: Hands, journal: Journal, log: Log
    ) -> None:
        self._access = access
        self._connection = connection
        self._strict = strict
        self._hands = hands
        self._journal = journal
        self._log = log
        self._events: queue.Queue[Union[Event, _Stop]] = queue.Queue()
        self._core = Core(journal.read(), random.random())  # noqa: S311 - not for secrets
        self._courier = Lane("api", self._events.put)
        self._worker = Lane("plan", self._events.put)
        self._api: Optional[kube.Api] = None
        self._writes = 0  # begun and ended: odd while one is under way
        self._stopped = threading.Event()
        self._stop_by: Optional[float] = None

    def run(self) -> None:
        """Until `stop`."""
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        event = self._next()
        while not self._ended_by(event):
            assert not isinstance(event, _Stop)
            for action in self._core.handle(event, Now(time.time(), time.monotonic())):
                if not self._carry_out(action):
                    self._end()
                    return
            event = self._next()
        self._end()

    def stop(self) -> None:
        """From another thread. An instruction that runs gets half a minute to end; else its plan begins anew later."""
        self._events.put(_Stop())

    # --- the loop --------------------------------------------------------------------------------------------------

    def _next(self) -> Union[Event, _Stop]:
        while True:
            wake = self._core.wake_at
            if self._stop_by is not None:
                wake = self._stop_by if wake is None else min(wake, self._stop_by)
            try:
                timeout = None if wake is None else max(0.0, wake - time.monotonic())
                event = self._events.get(timeout=timeout)
            except queue.Empty:
                event = Tick()
            if not isinstance(event, _Stop):
                return event
            self._stop_by = time.monotonic() + _PATIENCE_AT_STOP
            if not self._core.running and self._writes % 2 == 0:
                return event

    def _ended_by(self, event: Union[Event, _Stop]) -> bool:
        """Who stops us may have sent the same signal to the instruction: then it has not failed."""
        if isinstance(event, _Stop):
            return True
        if self._stop_by is None:
            return False
        killed = isinstance(event, Finished) and event.exit_code < 0
        return killed or isinstance(event, Written) or time.monotonic() >= self._stop_by

    def _end(self) -> None:
        self._stopped.set()
        self._hands.abandon()
        self._log.say("info", "stopped")

    def _carry_out(self, action: Action) -> bool:
        """False where it would begin something, and we are to stop."""
        if isinstance(action, Say):
            self._log.say(action.level, action.text)
        elif isinstance(action, Persist):
            self._persist(action)
        elif isinstance(action, Write):
            self._courier.do(lambda: self._write(action))
        elif isinstance(action, Read):
            self._courier.do(self._read)
        elif isinstance(action, Leave):
            self._worker.do(self._hands.leave)
        elif self._stop_by is not None:
            return False
        elif isinstance(action, StartProbe):
            threading.Thread(target=self._probe, args=(action,), name="probe", daemon=True).start()
        elif isinstance(action, Enter):
            self._worker.do(lambda: self._hands.enter(action))
        elif isinstance(action, WriteFiles):
            self._worker.do(lambda: self._hands.write_files(action))
        elif isinstance(action, Run):
            self._worker.do(lambda: self._hands.run(action))
        return True

    def _persist(self, action: Persist) -> None:
        try:
            self._journal.write(action.record)
        except OSError as error:  # a full disk: what is not reported before a crash will be run again
            self._log.say("error", f"the record of this run cannot be kept: {error}")

    # --- the API ---------------------------------------------------------------------------------------------------

    def _write(self, action: Write) -> Event:
        self._writes += 1
        try:
            return Written(self._courier_api().update(action.secret, action.data))
        except kube.ApiError as error:
            if error.status == 409:
                return Conflict()
            if error.status == 404:
                return SecretGone()
            return Unanswered(str(error), error.status in _TOO_LARGE)
        except kube.Unreachable as error:
            return Unanswered(str(error))
        finally:
            self._writes += 1

    def _read(self) -> Event:
        try:
            secret = self._courier_api().get()
        except (kube.ApiError, kube.Unreachable) as error:
            return Unanswered(str(error))
        return SecretGone() if secret is None else SecretSeen(secret, True)

    def _courier_api(self) -> kube.Api:
        if self._api is None:
            self._api = kube.Api(self._access, self._connection.namespace, self._connection.secret_name)
        return self._api

    def _watch(self) -> None:
        """Lists, then watches from there, and again when the watch is too old; waits longer from failure to failure."""
        failures = 0
        version = ""
        checked = False
        while not self._stopped.is_set():
            try:
                if not checked:
                    self._access = kube.usable(
                        self._access, self._connection.namespace, self._connection.secret_name, self._strict
                    )
                    checked = True
                if not version:
                    version = self._list()
                for seen in kube.Api(self._access, self._connection.namespace, self._connection.secret_name).watch(
                    version
                ):
                    failures, version = 0, seen.version
                    self._post(seen)
            except (kube.ApiError, kube.Unreachable) as error:
                if isinstance(error, kube.ApiError):
                    version = ""
                    if error.status == kube.GONE:
                        continue
                failures += 1
                wait = min(_LONGEST_BACKOFF, _SHORTEST_BACKOFF * 2 ** min(failures - 1, 8))
                wait *= random.uniform(0.5, 1.0)  # noqa: S311 - not for secrets
                self._log.say("warning", f"watching the plan: {error}; trying again in {wait:.1f} s")
                self._stopped.wait(wait)

    def _list(self) -> str:
        """A list that a write of ours has overtaken may be older than what we know."""
        before = self._writes
        api = kube.Api(self._access, self._connection.namespace, self._connection.secret_name)
        try:
            secret, version = api.list()
        finally:
            api.close()
        overtaken = before != self._writes or before % 2 == 1
        if secret is not None:
            self._events.put(SecretSeen(secret, not overtaken))
        elif not overtaken:
            self._events.put(SecretGone())
        return version

    def _post(self, seen: kube.Seen) -> None:
        if seen.kind == "DELETED":
            self._events.put(SecretGone())
        elif seen.secret is not None:
            self._events.put(SecretSeen(seen.secret))

    def _probe(self, action: StartProbe) -> None:
        if self._stopped.wait(action.delay):
            return
        succeeded, error = probes.ask(action.probe)
        self._events.put(Probed(action.round, action.probe.name, succeeded, error))
