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
from herder.agent.log import Log

_SHORTEST_BACKOFF, _LONGEST_BACKOFF = 0.5, 30.0
_PATIENCE_AT_STOP = 30.0
_SHORTEST_WATCH = 1.0
_TOO_LARGE = (413, 422)


class _Stop(Exception):
    """Ends the loop. Comes through the queue like any event, or in place of something that would begin now."""


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
        self._events: queue.Queue[Union[Event, BaseException]] = queue.Queue()
        self._turn = threading.Lock()  # whose it is handles an event
        self._core = Core(journal.read(), random.random())  # noqa: S311 - not for secrets
        self._writer: Optional[kube.Api] = None
        self._writes = 0  # begun and ended: odd while one is under way
        self._stopping = threading.Event()

    def run(self) -> None:
        """Until `stop`. One thing at a time: what the watch tells meanwhile waits, and the newest counts."""
        threading.Thread(target=self._guarded_watch, name="watch", daemon=True).start()
        try:
            while True:
                self._handle(self._next())
        except _Stop:
            self._turn.acquire()  # for good: nothing begins any more
            self._hands.abandon()
            self._log.say("info", "stopped")

    def stop(self) -> None:
        """From another thread. An instruction that runs gets half a minute to end; else its plan begins anew later."""
        self._stopping.set()
        self._events.put(_Stop())
        overdue = threading.Timer(_PATIENCE_AT_STOP, self._hands.abandon)
        overdue.daemon = True
        overdue.start()

    # --- the loop --------------------------------------------------------------------------------------------------

    def _next(self) -> Event:
        wake = self._core.wake_at
        try:
            event = self._events.get(timeout=None if wake is None else max(0.0, wake - time.monotonic()))
        except queue.Empty:
            return Tick()
        if isinstance(event, BaseException):
            raise event
        return event

    def _handle(self, event: Event) -> None:
        """With all that comes of it at once, in the thread that has heard of it."""
        with self._turn:
            reported = [event]
            while reported:
                for action in self._core.handle(reported.pop(0), Now(time.time(), time.monotonic())):
                    answer = self._carry_out(action)
                    if answer is not None:
                        reported.append(answer)
            self._hands.tidy()

    def _carry_out(self, action: Action) -> Optional[Event]:
        if isinstance(action, Say):
            self._log.say(action.level, action.text)
        elif isinstance(action, Persist):
            self._persist(action)
        elif isinstance(action, Write):
            return self._write(action)
        elif isinstance(action, Read):
            return self._read()
        elif isinstance(action, Leave):
            self._hands.leave()
        elif self._stopping.is_set():
            raise _Stop
        elif isinstance(action, Enter):
            return self._hands.enter(action)
        elif isinstance(action, WriteFiles):
            return self._hands.write_files(action)
        elif isinstance(action, Run):
            return self._run(action)
        elif isinstance(action, StartProbe):
            threading.Thread(target=self._probe, args=(action,), name="probe", daemon=True).start()
        return None

    def _run(self, action: Run) -> Event:
        """Who stops us may have sent the same signal to the instruction: then it has not failed."""
        finished = self._hands.run(action)
        if self._stopping.is_set() and finished.exit_code < 0:
            raise _Stop
        return finished

    def _persist(self, action: Persist) -> None:
        try:
            self._journal.write(action.record)
        except OSError as error:  # a full disk: what is not reported before a crash will be run again
            self._log.say("error", f"cannot save the result of this run: {error}")

    # --- the API ---------------------------------------------------------------------------------------------------

    def _write(self, action: Write) -> Event:
        self._writes += 1
        try:
            return Written(self._api().update(action.secret, action.data))
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
            secret = self._api().get()
        except (kube.ApiError, kube.Unreachable) as error:
            return Unanswered(str(error))
        return SecretGone() if secret is None else SecretSeen(secret, True)

    def _api(self) -> kube.Api:
        if self._writer is None:
            self._writer = self._client()
        return self._writer

    def _client(self) -> kube.Api:
        return kube.Api(self._access, self._connection.namespace, self._connection.secret_name)

    def _guarded_watch(self) -> None:
        """What nobody expected ends the daemon, wherever it happens."""
        try:
            self._watch()
        except BaseException as error:
            self._events.put(error)

    def _watch(self) -> None:
        """Lists, then watches from there, and again when the watch is too old; waits longer from failure to failure."""
        failures = 0
        version = ""
        checked = False
        while not self._stopping.is_set():
            try:
                if not checked:
                    self._access = kube.usable(
                        self._access, self._connection.namespace, self._connection.secret_name, self._strict
                    )
                    checked = True
                if not version:
                    version = self._list()
                began = time.monotonic()
                for seen in self._client().watch(version):
                    failures, version = 0, seen.version
                    self._post(seen)
                if time.monotonic() - began < _SHORTEST_WATCH:
                    raise kube.Unreachable("the server ended the watch at once")
            except (kube.ApiError, kube.Unreachable) as error:
                if isinstance(error, kube.ApiError):
                    version = ""
                    if error.status == kube.GONE:
                        continue
                failures += 1
                wait = min(_LONGEST_BACKOFF, _SHORTEST_BACKOFF * 2 ** min(failures - 1, 8))
                wait *= random.uniform(0.5, 1.0)  # noqa: S311 - not for secrets
                self._log.say("warning", f"watch of the plan Secret failed: {error}; retrying in {wait:.1f} s")
                self._stopping.wait(wait)

    def _list(self) -> str:
        """A list that a write of ours has overtaken may be older than what we know."""
        before = self._writes
        api = self._client()
        try:
            secret, version = api.list()
        finally:
            api.close()
        overtaken = before != self._writes or before % 2 == 1
        if secret is not None:
            self._hear(SecretSeen(secret, not overtaken))
        elif not overtaken:
            self._hear(SecretGone())
        return version

    def _post(self, seen: kube.Seen) -> None:
        if seen.kind == "DELETED":
            self._hear(SecretGone())
        elif seen.secret is not None:
            self._hear(SecretSeen(seen.secret))

    def _hear(self, event: Event) -> None:
        """Handled here, without waking another thread for it; but that one waits for what is due later."""
        self._handle(event)
        if self._core.wake_at is not None:
            self._events.put(Tick())

    def _probe(self, action: StartProbe) -> None:
        if self._stopping.wait(action.delay):
            return
        succeeded, error = probes.ask(action.probe)
        self._events.put(Probed(action.round, action.probe.name, succeeded, error))
