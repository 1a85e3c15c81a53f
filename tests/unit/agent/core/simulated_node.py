"""An in-memory plan Secret, node and clock that drive the agent's core in tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from herder.agent.apply import journal
from herder.agent.core.core import Core
from herder.agent.core.events import (
    AcquireInterlock,
    Action,
    Blocked,
    Conflict,
    Event,
    FilesWritten,
    Finished,
    InterlockAcquired,
    Now,
    Persist,
    Probed,
    Read,
    Record,
    ReleaseInterlock,
    RequestFailed,
    Run,
    Say,
    Secret,
    SecretGone,
    SecretSeen,
    StartProbe,
    Tick,
    Write,
    WriteFiles,
    Written,
)
from herder.agent.core.plan import Instruction, Probe

START = 1_800_000_000.0


class AgentKilled(Exception):
    """The simulated agent process was killed."""


class SimulatedNode:
    """Executes the core's actions immediately, except those that a test holds back or makes fail."""

    def __init__(self, data: Mapping[str, str | bytes] | None = None, *, boot: bool = True) -> None:
        self.now = START
        self.uid = "uid-1"
        self.version = 100
        self.data: dict[str, bytes] | None = None
        self.disk: Record | None = None
        self.ran: list[tuple[str, int]] = []  # instruction name and attempt number
        self.exit_codes: dict[str, int] = {}
        self.healthy: dict[str, bool] = {}
        self.file_error = ""
        self.blocked = ""
        self.log: list[str] = []
        self.writes: list[dict[str, bytes]] = []
        self.reachable = True
        self.lose_responses = False
        self.interlock_held = False
        self.held: set[type] = set()  # types of actions that get no result
        self.unanswered: list[Action] = []
        self.before: Callable[[Action], None] = lambda action: None
        self.after: Callable[[Action], None] = lambda action: None
        self.core = Core()
        self._pending: list[Event] = []
        if data is not None:
            self.set(data)
        if boot:
            self.boot()

    # --- planner side -----------------------------------------------------------------------------------------------

    def set(self, data: Mapping[str, str | bytes], *, uid: str = "") -> None:
        """Replace the whole Secret; a new uid makes it a new object."""
        self.uid = uid or self.uid
        self._store({key: value.encode() if isinstance(value, str) else value for key, value in data.items()})

    def edit(self, **changes: str | bytes | None) -> None:
        data = dict(self.data or {})
        for name, value in changes.items():
            key = name.replace("_", "-")
            if value is None:
                data.pop(key, None)
            else:
                data[key] = value.encode() if isinstance(value, str) else value
        self._store(data)

    def delete(self) -> None:
        self.data = None
        self._pending.append(SecretGone())

    def _store(self, data: dict[str, bytes]) -> None:
        self.data = data
        self.version += 1
        self._pending.append(SecretSeen(self.secret()))

    def secret(self) -> Secret:
        assert self.data is not None
        return Secret(self.uid, str(self.version), dict(self.data))

    # --- agent side -------------------------------------------------------------------------------------------------

    def boot(self) -> SimulatedNode:
        """Start a new agent process with the journal that the previous one left on disk."""
        self.core = Core(None if self.disk is None else journal._from_json(json.loads(json.dumps(self._disk()))))
        self.interlock_held = False
        self._pending = [SecretSeen(self.secret(), True)] if self.data is not None else []
        self.unanswered = []
        return self.process_events()

    def _disk(self) -> dict[str, Any]:
        assert self.disk is not None
        return journal._to_json(self.disk)

    def process_events(self) -> SimulatedNode:
        """Deliver pending events until there are none."""
        while self._pending:
            self.deliver(self._pending.pop(0))
        return self

    def wait(self, seconds: float) -> SimulatedNode:
        """Advance the clock, and deliver a tick at each wake-up time that the core requests."""
        end = self.now + seconds
        self.process_events()
        while self.core.wake_at is not None and self.core.wake_at - START <= end - START:
            self.now = max(self.now, self.core.wake_at)
            self.deliver(Tick())
            self.process_events()
        self.now = end
        return self

    def deliver(self, event: Event) -> None:
        for action in self.core.handle(event, Now(self.now, self.now)):
            self.before(action)
            result = self._execute(action)
            self.after(action)
            if result is not None:
                self._pending.append(result)

    def _execute(self, action: Action) -> Event | None:
        if type(action) in self.held:
            self.unanswered.append(action)
            return None
        match action:
            case Say(_, text):
                self.log.append(text)
            case Persist(record):
                self.disk = record
            case Write():
                return self.write(action)
            case Read():
                return self._read()
            case AcquireInterlock():
                return self._acquire_interlock()
            case WriteFiles():
                return FilesWritten(self.file_error)
            case Run(_, instruction, attempt):
                return self.run(instruction, attempt)
            case ReleaseInterlock():
                assert self.interlock_held
                self.interlock_held = False
            case StartProbe(round_, probe, _):
                return self._probe(round_, probe)
        return None

    def write(self, action: Write) -> Event:
        if not self.reachable:
            return RequestFailed("connection refused")
        if self.data is None:
            return SecretGone()
        if action.secret.version != str(self.version) or action.secret.uid != self.uid:
            return Conflict()
        assert action.data != self.data, "a write that changes nothing"
        self.data = dict(action.data)
        self.version += 1
        self.writes.append(dict(action.data))
        self._pending.append(SecretSeen(self.secret()))
        return RequestFailed("the response was lost") if self.lose_responses else Written(self.secret())

    def _read(self) -> Event:
        if not self.reachable:
            return RequestFailed("connection refused")
        return SecretGone() if self.data is None else SecretSeen(self.secret(), True)

    def _acquire_interlock(self) -> Event:
        if self.blocked:
            return Blocked(self.blocked)
        assert not self.interlock_held, "one plan at a time"
        self.interlock_held = True
        return InterlockAcquired()

    def run(self, instruction: Instruction, attempt: int) -> Finished:
        assert self.interlock_held, "instructions run under the interlock"
        self.ran.append((instruction.name, attempt))
        code = self.exit_codes.get(instruction.name, 0)
        return Finished(code, f"out of {instruction.name}".encode(), b"a reason" if code else b"")

    def _probe(self, round_: int, probe: Probe) -> Probed:
        healthy = self.healthy.get(probe.name, True)
        return Probed(round_, probe.name, healthy, "" if healthy else "refused")

    # --- inspection ---------------------------------------------------------------------------------------------------

    def value_of(self, key: str) -> str:
        return (self.data or {}).get(key, b"").decode()

    @property
    def state(self) -> str:
        return self.value_of("plan-state")


def plan(*names: str, probes: tuple[str, ...] = (), periodic: Mapping[str, int] | None = None, note: str = "") -> str:
    """Return a plan with instructions of these names that save their output; `note` changes its checksum."""
    return json.dumps(
        {
            "instructions": [{"name": name, "command": "true", "saveOutput": True} for name in names],
            "probes": {name: {"httpGet": {"url": f"http://127.0.0.1/{name}"}} for name in probes},
            "periodicInstructions": [
                {"name": name, "command": "true", "periodSeconds": period} for name, period in (periodic or {}).items()
            ],
            "note": note,
        }
    )
