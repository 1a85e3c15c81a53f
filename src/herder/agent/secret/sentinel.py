"""The I/O shell of the core: watches the Secret, performs the core's actions and feeds back their results."""

import queue
import random
import threading
import time
from typing import Optional, Union

from herder.agent.apply import probe, service
from herder.agent.apply.executor import NodeExecutor
from herder.agent.apply.journal import Journal
from herder.agent.config import Connection
from herder.agent.core.core import Core
from herder.agent.core.events import (
    AcquireInterlock,
    Action,
    Conflict,
    Event,
    Now,
    Persist,
    Probed,
    Read,
    ReleaseInterlock,
    RequestFailed,
    Run,
    Say,
    SecretGone,
    SecretSeen,
    StartProbe,
    Tick,
    Write,
    WriteFiles,
    Written,
)
from herder.agent.log import Log
from herder.agent.program import Program
from herder.agent.secret import client
from herder.agent.secret.kubeconfig import Access

_MIN_BACKOFF, _MAX_BACKOFF = 0.5, 30.0
_STOP_GRACE_PERIOD = 30.0
_SIGNAL_SECONDS = 1.0  # until a signal that was sent to all processes of the service has reached the agent
_MIN_WATCH_SECONDS = 1.0
_TOO_LARGE = (413, 422)


class _Stop(Exception):
    """Ends the loop; arrives through the queue, or replaces an action that would start now."""


class Remote:
    def __init__(
        self,
        access: Access,
        connection: Connection,
        strict: bool,
        executor: NodeExecutor,
        journal: Journal,
        log: Log,
        program: Program,
    ) -> None:
        self._access = access
        self._connection = connection
        self._strict = strict
        self._hands = executor
        self._journal = journal
        self._log = log
        self._events: queue.Queue[Union[Event, BaseException]] = queue.Queue()
        self._event_lock = threading.Lock()  # held while an event is handled
        self._program = program
        self._core = Core(journal.read(), random.random(), program.identity)  # noqa: S311 - not for secrets
        self._writer: Optional[client.Api] = None
        self._writes = 0  # started and finished writes: odd while one is in flight
        self._stopping = threading.Event()
        self._service = service.ServiceState()

    def run(self) -> None:
        """Run until `stop`, one event at a time; only the newest event of the watch is kept."""
        threading.Thread(target=self._guarded_watch, name="watch", daemon=True).start()
        try:
            while True:
                self._handle(self._next())
        except _Stop:
            self._event_lock.acquire()  # permanently: nothing may start any more
            self._hands.abandon()
            self._log.say("info", "stopped")

    def stop(self) -> None:
        """Stop from another thread. A running instruction gets 30 seconds; otherwise its plan is run again later."""
        self._stopping.set()
        self._events.put(_Stop())
        overdue = threading.Timer(_STOP_GRACE_PERIOD, self._hands.abandon)
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
        """Handle an event and everything that follows immediately, in the calling thread."""
        with self._event_lock:
            reported = [event]
            while reported:
                for action in self._core.handle(reported.pop(0), Now(time.time(), time.monotonic())):
                    answer = self._perform(action)
                    if answer is not None:
                        reported.append(answer)
            if self._core.is_identified:
                self._program.confirm()
            self._hands.tidy()

    def _perform(self, action: Action) -> Optional[Event]:
        if isinstance(action, Say):
            self._log.say(action.level, action.text)
        elif isinstance(action, Persist):
            self._persist(action)
        elif isinstance(action, Write):
            return self._write(action)
        elif isinstance(action, Read):
            return self._read()
        elif isinstance(action, ReleaseInterlock):
            self._hands.leave()
        elif self._stopping.is_set():
            raise _Stop
        elif isinstance(action, AcquireInterlock):
            return self._hands.enter(action)
        elif isinstance(action, WriteFiles):
            return self._hands.write_files(action)
        elif isinstance(action, Run):
            return self._run(action)
        elif isinstance(action, StartProbe):
            threading.Thread(target=self._probe, args=(action,), name="probe", daemon=True).start()
        return None

    def _run(self, action: Run) -> Event:
        """Run an instruction. A signal that stops the agent may have hit it too, and first, which is not a failure."""
        finished = self._hands.run(action)
        if finished.exit_code < 0 and self._stopping.wait(0 if finished.error else _SIGNAL_SECONDS):
            raise _Stop
        return finished

    def _persist(self, action: Persist) -> None:
        try:
            self._journal.write(action.record)
        except OSError as error:  # a full disk: an unreported result is lost in a crash, and the plan run again
            self._log.say("error", f"cannot save the result of this run: {error}")

    # --- the API ---------------------------------------------------------------------------------------------------

    def _write(self, action: Write) -> Event:
        self._writes += 1
        try:
            return Written(self._api().update(action.secret, action.data))
        except client.ApiError as error:
            if error.status == 409:
                return Conflict()
            if error.status == 404:
                return SecretGone()
            return RequestFailed(str(error), error.status in _TOO_LARGE)
        except client.Unreachable as error:
            return RequestFailed(str(error))
        finally:
            self._writes += 1

    def _read(self) -> Event:
        try:
            secret = self._api().get()
        except (client.ApiError, client.Unreachable) as error:
            return RequestFailed(str(error))
        return SecretGone() if secret is None else SecretSeen(secret, True)

    def _api(self) -> client.Api:
        if self._writer is None:
            self._writer = self._client()
        return self._writer

    def _client(self) -> client.Api:
        return client.Api(self._access, self._connection.namespace, self._connection.secret_name)

    def _guarded_watch(self) -> None:
        """An unexpected error ends the agent, in whatever thread."""
        try:
            self._watch()
        except BaseException as error:
            self._events.put(error)

    def _watch(self) -> None:
        """List, watch from there, and list again if the watch is too old, with exponential backoff."""
        failures = 0
        version = ""
        checked = False
        while not self._stopping.is_set():
            try:
                if not checked:
                    self._access = client.usable(
                        self._access, self._connection.namespace, self._connection.secret_name, self._strict
                    )
                    checked = True
                if not version:
                    version = self._list()
                began = time.monotonic()
                for seen in self._client().watch(version):
                    failures, version = 0, seen.version
                    self._post(seen)
                if time.monotonic() - began < _MIN_WATCH_SECONDS:
                    raise client.Unreachable("the server ended the watch at once")
            except (client.ApiError, client.Unreachable) as error:
                if isinstance(error, client.ApiError):
                    version = ""
                    if error.status == client.GONE:
                        continue
                failures += 1
                wait = min(_MAX_BACKOFF, _MIN_BACKOFF * 2 ** min(failures - 1, 8))
                wait *= random.uniform(0.5, 1.0)  # noqa: S311 - not for secrets
                self._log.say("warning", f"watch of the plan Secret failed: {error}; retrying in {wait:.1f} s")
                self._stopping.wait(wait)

    def _list(self) -> str:
        """A list may be older than our own last write."""
        before = self._writes
        api = self._client()
        try:
            secret, version = api.list()
        finally:
            api.close()
        overtaken = before != self._writes or before % 2 == 1
        if secret is not None:
            self._dispatch(SecretSeen(secret, not overtaken))
        elif not overtaken:
            self._dispatch(SecretGone())
        return version

    def _post(self, seen: client.WatchEvent) -> None:
        if seen.kind == "DELETED":
            self._dispatch(SecretGone())
        elif seen.secret is not None:
            self._dispatch(SecretSeen(seen.secret))

    def _dispatch(self, event: Event) -> None:
        """Handle the event in this thread; wake the other one for timers only."""
        self._handle(event)
        if self._core.wake_at is not None:
            self._events.put(Tick())

    def _probe(self, action: StartProbe) -> None:
        if self._stopping.wait(action.delay):
            return
        succeeded, error = probe.ask(action.probe)
        state = ("", "") if succeeded else self._service.read()
        self._events.put(Probed(action.round, action.probe.name, succeeded, error, state))
