"""Sans-I/O core of the agent: it takes events and returns actions (both in `events.py`).

core = Core(record)                      # the last persisted record, or None
for action in core.handle(event, now):   # one event at a time; perform the actions in order
core.wake_at                             # when to send Tick (monotonic clock); None: not before another event

Persist, ReleaseInterlock and Say are done when performed; every other action is answered by one event later. The core
never blocks. At most one of Write, Read, AcquireInterlock, WriteFiles and Run is in flight, and one round of probes.

A plan's life cycle: SecretSeen → Persist, Write (in-progress) → Written → AcquireInterlock → InterlockAcquired →
WriteFiles → FilesWritten → Run → Finished, for each instruction → ReleaseInterlock, Persist → Write (the report) →
Written → StartProbe …

After every event the core compares the Secret with its own state. So lost responses, conflicts and restarts need no
special handling: unreported results are reported again, finished plans are never run again, and results of replaced
plans are dropped.
"""

from typing import Dict, List, NamedTuple, Optional, Tuple

from herder.agent.core import outputs, protocol
from herder.agent.core.events import (
    AcquireInterlock,
    Action,
    Blocked,
    Conflict,
    Event,
    Evidence,
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
    Result,
    Run,
    Say,
    Secret,
    SecretGone,
    SecretSeen,
    Write,
    WriteFiles,
    Written,
)
from herder.agent.core.outputs import PeriodicOutput
from herder.agent.core.plan import PeriodicInstruction, Plan, PlanError, checksum, parse
from herder.agent.core.probe_health import Probing
from herder.agent.core.protocol import ANONYMOUS, Identity

_BLOCKED_RETRY = 1.0
_MIN_BACKOFF, _MAX_BACKOFF = 1.0, 60.0
_TAIL = 4096


class _Identity(NamedTuple):
    """Identifies a run of a plan. Agents without plan-state support have no revision, only the checksum."""

    uid: str
    revision: str
    checksum: str


class _Running:
    """A run in progress: of a whole plan, or of its periodic instructions only."""

    def __init__(self, identity: _Identity, plan: Plan, attempt: int, now: Now, whole: bool) -> None:
        self.identity = identity
        self.plan = plan
        self.attempt = attempt
        self.began = now.wall
        self.whole = whole
        self.index = 0  # of the current instruction
        self.outputs: Dict[str, bytes] = {}
        self.evidence: Optional[Evidence] = None
        self.periodic_left: List[PeriodicInstruction] = []
        self.periodic: Dict[str, PeriodicOutput] = {}
        self.in_periodic = False


class Core:
    def __init__(self, record: Optional[Record] = None, jitter: float = 0.5, identity: Identity = ANONYMOUS) -> None:
        """`jitter`, between 0 and 1, desynchronizes the retries of agents. `identity` is reported with every write."""
        self.record = record
        self.identity = identity
        self.wake_at: Optional[float] = None
        self._jitter = jitter
        self._secret: Optional[Secret] = None
        self._checksum = ""
        self._plan: Optional[Plan] = None
        self._plan_error = ""
        self._first_pass = True
        self._busy = False  # a read or write is in flight
        self._must_read = False
        self._failures = 0  # consecutive failed reads and writes
        self._not_before = 0.0  # monotonic
        self._running: Optional[_Running] = None
        self._committed: Optional[_Identity] = None  # started by this process, not run yet
        self._untold = record is not None and record.result is not None
        self._report_uncertain = True  # a report may have been written despite an error
        self._too_large = False
        self._periodic_untold: Dict[str, PeriodicOutput] = {}
        self._probing = Probing()
        self._actions: List[Action] = []

    @property
    def running(self) -> bool:
        """Whether a run is in progress."""
        return self._running is not None

    @property
    def is_identified(self) -> bool:
        """Whether the Secret names this agent, so that the manager knows which one runs."""
        return self._secret is not None and protocol.is_identified(self._secret.data, self.identity)

    def handle(self, event: Event, now: Now) -> List[Action]:
        self._actions = []
        self._apply_event(event, now)
        self._advance(now)
        return self._actions

    # --- events ----------------------------------------------------------------------------------------------------

    def _apply_event(self, event: Event, now: Now) -> None:
        if isinstance(event, SecretSeen):
            self._secret_seen(event.secret, event.consistent)
        elif isinstance(event, Written):
            self._busy, self._failures, self._untold, self._too_large = False, 0, False, False
            self._secret_seen(event.secret, True)
        elif isinstance(event, SecretGone):
            self._busy = self._must_read = False
            self._forget_secret()
        elif isinstance(event, Conflict):
            self._busy, self._must_read = False, True
        elif isinstance(event, RequestFailed):
            self._back_off(event, now)
        elif isinstance(event, Probed):
            if self._secret is not None:
                self._probing.take(event, now.steady, protocol.probe_period(self._secret.data))
        elif self._running is not None:
            self._continue_run(self._running, event, now)

    def _secret_seen(self, secret: Secret, consistent: bool) -> None:
        known = self._secret
        if consistent and self._must_read:
            self._busy, self._must_read, self._not_before = False, False, 0.0
        if known is not None and known.uid == secret.uid and not consistent and not _is_newer(secret, known):
            return  # a stale read, or our own write
        if known is not None and known.uid != secret.uid:
            self._say("info", "the plan Secret was recreated; discarding the state of the old one")
            self._forget_secret()
        self._secret = secret
        self._read_plan(secret)

    def _forget_secret(self) -> None:
        self._secret = self._plan = None
        self._checksum = ""
        self._first_pass = True
        self._untold = False
        self._periodic_untold = {}
        self._probing.stop()

    def _read_plan(self, secret: Secret) -> None:
        raw = secret.data.get(protocol.PLAN, b"")
        found = checksum(raw) if raw else ""
        if found == self._checksum:
            return
        self._checksum, self._plan, self._plan_error = found, None, ""
        self._periodic_untold = {}
        if raw:
            try:
                self._plan = parse(raw)
            except PlanError as error:
                self._plan_error = str(error)
        self._probing.watch(self._plan.probes if self._plan else [], secret.data)

    def _back_off(self, event: RequestFailed, now: Now) -> None:
        """Back off after a failed request. A write may have succeeded anyway, so the Secret is read first."""
        self._busy, self._must_read, self._report_uncertain = False, True, True
        self._too_large = self._too_large or event.too_large
        self._failures += 1
        wait = min(_MAX_BACKOFF, _MIN_BACKOFF * 2 ** min(self._failures - 1, 10)) * (0.5 + self._jitter / 2)
        self._not_before = now.steady + wait
        self._say("warning", f"API server: {event.reason}; retrying in {wait:.1f} s")

    # --- decisions -------------------------------------------------------------------------------------------------

    def _advance(self, now: Now) -> None:
        """Start the first action that is due, if none of its kind is in flight."""
        self.wake_at = None
        if self._running is not None or self._busy:
            return
        if now.steady < self._not_before:
            self._wake(self._not_before)
            return
        if self._must_read:
            self._busy = True
            self._do(Read())
            return
        secret = self._secret
        if secret is None or not self._checksum:
            return
        if self._report_newer(secret):
            return
        if not (self._report_result(secret) or self._run_plan(secret, now) or self._run_periodic(secret, now)):
            self._probe(secret, now)

    def _report_newer(self, secret: Secret) -> bool:
        """Report that this machine has applied a newer plan than that of the Secret, which was restored from a backup.

        The manager cannot know it otherwise. The plan of the Secret is not run because of that.
        """
        record, revision = self.record, self._known_revision(secret)
        is_applied = record is not None and record.result is not None and record.result.succeeded
        if record is None or not is_applied or revision <= protocol.count(secret.data, protocol.REVISION):
            return False
        data = protocol.with_newer(secret.data, record.checksum, revision)
        if data == secret.data:
            return False
        self._say("warning", f"the Secret is older than the plan that was applied here, revision {revision}")
        self._write(secret, data)
        return True

    def _known_revision(self, secret: Secret) -> int:
        """Return the revision of the last run on this machine; 0 if it was for another Secret or is not counted."""
        record = self.record
        return int(record.revision) if record and record.uid == secret.uid and record.revision.isdecimal() else 0

    def _report_result(self, secret: Secret) -> bool:
        """Return whether a report is being written."""
        record = self.record
        result = record.result if record else None
        if record is None or result is None or not self._is_result_pending(secret, record, result):
            self._untold = False
            return False
        if self._too_large:
            result = protocol.without_outputs(result)
        self._probing.watch(self._plan.probes if self._plan else [], secret.data)
        data = protocol.with_report(secret.data, record.checksum, result)
        data = protocol.with_periodic(data, result.periodic)
        self._first_pass = False
        self._write(secret, self._probing.with_changes(data, always=True))
        return True

    def _is_result_pending(self, secret: Secret, record: Record, result: Result) -> bool:
        """Whether the Secret still waits for this result."""
        if _identity_of(record) != self._identity(secret):
            return False
        if protocol.STATE in secret.data:
            return protocol.text(secret.data, protocol.STATE) == protocol.IN_PROGRESS
        return self._untold and not (
            self._report_uncertain and protocol.already_reported(secret.data, record.checksum, result)
        )

    def _run_plan(self, secret: Secret, now: Now) -> bool:
        """Return whether a run was started or is being announced."""
        state = protocol.text(secret.data, protocol.STATE)
        if state == protocol.PENDING:
            self._commit(secret)
            return True
        if state == protocol.IN_PROGRESS:
            self._first_pass = False
            self._start(secret, self._attempt_after_crash(secret), now)
            return True
        if state:
            self._first_pass = False
            return False
        verdict = protocol.verdict_by_checksum(secret.data, self._checksum, self._first_pass, now.wall)
        self._first_pass = False
        if verdict.run:
            self._start(secret, verdict.attempt, now)
        elif verdict.wait_until is not None:
            self._wake(now.steady + verdict.wait_until - now.wall)
        return verdict.run

    def _commit(self, secret: Secret) -> None:
        """Mark the plan as in-progress in the Secret before it runs."""
        data = dict(secret.data)
        data[protocol.STATE] = protocol.IN_PROGRESS.encode()
        begun = self.record is not None and self.record.result is None  # its revision may not have been written yet
        last = max(protocol.count(secret.data, protocol.REVISION), self._known_revision(secret) - begun)
        data[protocol.REVISION] = str(last + 1).encode()
        identity = _Identity(secret.uid, protocol.text(data, protocol.REVISION), self._checksum)
        self._persist(Record(identity.uid, identity.revision, identity.checksum, 1, None))
        self._committed = identity
        self._write(secret, data)

    def _attempt_after_crash(self, secret: Secret) -> int:
        """Return an attempt number that no earlier run of this plan had, so that commands guarded by it run again."""
        attempt = protocol.count(secret.data, protocol.FAILURE_COUNT) + 1
        record = self.record
        if record is None or _identity_of(record) != self._identity(secret):
            return attempt
        if self._committed == self._identity(secret):
            return record.attempt
        return max(attempt, record.attempt + 1)

    def _start(self, secret: Secret, attempt: int, now: Now) -> None:
        identity = self._identity(secret)
        if identity != self._committed:
            self._persist(Record(identity.uid, identity.revision, identity.checksum, attempt, None))
        self._probing.stop()
        self._say("info", "applying plan {} (revision {}, attempt {})".format(*_short(identity), attempt))
        running = _Running(identity, self._plan or Plan([], [], [], []), attempt, now, True)
        self._running = running
        if self._plan is None:
            running.evidence = Evidence("", -1, -1, self._plan_error, "")
            self._end_run(running)
            self._report_result(secret)
        else:
            self._do(AcquireInterlock(self._checksum, secret.data[protocol.PLAN]))

    def _run_periodic(self, secret: Secret, now: Now) -> bool:
        due = []
        for periodic, last in self._periodic_known(secret):
            when = protocol.periodic_due(periodic, last, now.wall)
            if when <= now.wall:
                due.append(periodic)
            else:
                self._wake(now.steady + when - now.wall)
        if not due:
            return False
        running = _Running(self._identity(secret), self._plan or Plan([], [], [], []), 0, now, False)
        running.periodic_left = due
        self._running = running
        self._do(AcquireInterlock(self._checksum, secret.data[protocol.PLAN]))
        return True

    # --- a run -----------------------------------------------------------------------------------------------------

    def _continue_run(self, running: _Running, event: Event, now: Now) -> None:
        if isinstance(event, Blocked):
            self._say("info", event.reason)
            self._running = None
            self._not_before = now.steady + _BLOCKED_RETRY
            if running.whole:
                self._committed = running.identity
                self._first_pass = not running.identity.revision
        elif isinstance(event, InterlockAcquired):
            if running.whole:
                self._do(WriteFiles(running.plan.files))
            else:
                self._next_periodic(running)
        elif isinstance(event, FilesWritten):
            if event.error:
                running.evidence = Evidence("", -1, -1, event.error, "")
            self._next_instruction(running)
        elif isinstance(event, Finished):
            if running.in_periodic:
                self._periodic_finished(running, event, now)
            else:
                self._instruction_finished(running, event)

    def _next_instruction(self, running: _Running) -> None:
        if running.evidence is None and running.index < len(running.plan.instructions):
            self._do(Run(_place(running, running.index), running.plan.instructions[running.index], running.attempt))
            return
        running.periodic_left = list(running.plan.periodic)
        self._next_periodic(running)

    def _instruction_finished(self, running: _Running, finished: Finished) -> None:
        instruction = running.plan.instructions[running.index]
        if instruction.save_output and instruction.name:
            running.outputs[instruction.name] = outputs.as_lines(finished.stdout)
        if finished.exit_code != 0:
            running.evidence = Evidence(
                instruction.name, running.index, finished.exit_code, finished.error, _tail(finished)
            )
        running.index += 1
        self._next_instruction(running)

    def _next_periodic(self, running: _Running) -> None:
        running.in_periodic = True
        while running.periodic_left and not running.periodic_left[0].instruction.name:
            running.periodic_left.pop(0)
            self._say("error", "skipping a periodic instruction without a name")
        if not running.periodic_left:
            self._do(ReleaseInterlock())
            self._end_run(running)
            return
        periodic = running.periodic_left[0]
        place = _place(running, running.plan.periodic.index(periodic))
        attempt = protocol.periodic_attempt(self._last_periodic(periodic.instruction.name))
        self._do(Run(place, periodic.instruction, attempt))

    def _periodic_finished(self, running: _Running, finished: Finished, now: Now) -> None:
        """A failed periodic instruction delays those after it until the next time."""
        periodic = running.periodic_left.pop(0)
        name = periodic.instruction.name
        running.periodic[name] = protocol.periodic_ran(periodic, self._last_periodic(name), finished, now.wall)
        if finished.exit_code != 0:
            running.periodic_left = []
        self._next_periodic(running)

    def _end_run(self, running: _Running) -> None:
        self._running = None
        if not running.whole:
            if running.identity.checksum == self._checksum:
                self._periodic_untold.update(running.periodic)
            return
        self._committed = None
        result = Result(running.evidence is None, running.began, running.outputs, running.periodic, running.evidence)
        self._persist(Record(*running.identity, attempt=running.attempt, result=result))
        self._untold, self._report_uncertain = True, False
        self._probing.after_run()
        self._say_outcome(running)

    def _say_outcome(self, running: _Running) -> None:
        evidence = running.evidence
        if evidence is None:
            self._say("info", "plan {} (revision {}) was applied".format(*_short(running.identity)))
            return
        culprit = f"instruction {evidence.position} '{evidence.instruction}'" if evidence.position >= 0 else ""
        reason = evidence.error or f"exit code {evidence.exit_code}"
        self._say("error", "plan {} (revision {}) failed: ".format(*_short(running.identity)) + f"{culprit} {reason}")

    # --- periodic instructions and probes --------------------------------------------------------------------------

    def _periodic_known(self, secret: Secret) -> List[Tuple[PeriodicInstruction, Optional[PeriodicOutput]]]:
        if self._plan is None or not self._plan.periodic:
            return []
        known = outputs.periodic_from(secret.data.get(protocol.PERIODIC_OUTPUT, b""))
        known.update(self._periodic_untold)
        return [(each, known.get(each.instruction.name)) for each in self._plan.periodic if each.instruction.name]

    def _last_periodic(self, name: str) -> Optional[PeriodicOutput]:
        data = self._secret.data if self._secret else {}
        known = outputs.periodic_from(data.get(protocol.PERIODIC_OUTPUT, b""))
        known.update(self._periodic_untold)
        return known.get(name)

    def _probe(self, secret: Secret, now: Now) -> None:
        """Report probe changes, then start the next round."""
        probing = self._probing
        if probing.under_way:
            return
        data = probing.with_changes(protocol.with_periodic(secret.data, self._periodic_untold))
        data = protocol.with_identity(data, self.identity)
        if data != secret.data:
            self._write(secret, data)
            return
        self._periodic_untold = {}
        if probing.wanted and now.steady < probing.next_round:
            self._wake(probing.next_round)
        elif probing.wanted:
            self._actions += probing.start_round()

    # --- helpers ---------------------------------------------------------------------------------------------------

    def _identity(self, secret: Secret) -> _Identity:
        revision = protocol.text(secret.data, protocol.REVISION) if protocol.STATE in secret.data else ""
        return _Identity(secret.uid, revision, self._checksum)

    def _write(self, secret: Secret, data: Dict[str, bytes]) -> None:
        self._busy = True
        self._do(Write(secret, protocol.with_identity(data, self.identity)))

    def _persist(self, record: Record) -> None:
        self.record = record
        self._do(Persist(record))

    def _do(self, action: Action) -> None:
        self._actions.append(action)

    def _say(self, level: str, text: str) -> None:
        self._do(Say(level, text))

    def _wake(self, at: float) -> None:
        self.wake_at = at if self.wake_at is None else min(self.wake_at, at)


def _identity_of(record: Record) -> _Identity:
    return _Identity(record.uid, record.revision, record.checksum)


def _is_newer(secret: Secret, known: Secret) -> bool:
    """Compare resourceVersions as numbers; if they are not, assume newer."""
    try:
        return int(secret.version) > int(known.version)
    except ValueError:
        return secret.version != known.version


def _short(identity: _Identity) -> List[str]:
    return [identity.checksum[:12], identity.revision or "none"]


def _place(running: _Running, index: int) -> str:
    return f"{running.identity.checksum}_{index}"


def _tail(finished: Finished) -> str:
    said = finished.stderr.strip() or finished.stdout.strip()
    return said[-_TAIL:].decode("utf-8", "replace")
