"""The plan Secret protocol as pure functions: what to run, and what to report."""

import json
import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from herder.agent.core import outputs
from herder.agent.core.events import Data, Evidence, Finished, Result
from herder.agent.core.outputs import PeriodicOutput, ProbeStatus
from herder.agent.core.plan import PeriodicInstruction, Probe

PLAN = "plan"
STATE = "plan-state"
REVISION = "plan-revision"
APPLIED_CHECKSUM = "applied-checksum"
APPLIED_OUTPUT = "applied-output"
PERIODIC_OUTPUT = "applied-periodic-output"
FAILED_CHECKSUM = "failed-checksum"
FAILED_OUTPUT = "failed-output"
FAILED_EVIDENCE = "failed-evidence"  # our own key: why it failed
FAILURE_COUNT = "failure-count"
SUCCESS_COUNT = "success-count"
LAST_APPLY_TIME = "last-apply-time"
MAX_FAILURES = "max-failures"
PROBE_STATUSES = "probe-statuses"
PROBE_ERRORS = "probe-errors"  # our own key: last errors of unhealthy probes
PROBE_PERIOD = "probe-period-seconds"
# our own keys: the last plan that this machine has applied, if the Secret has lost it
LOCAL_CHECKSUM, LOCAL_REVISION = "local-applied-checksum", "local-plan-revision"
# our own keys: which agent this is
AGENT_VERSION, AGENT_CHECKSUM = "agent-version", "agent-checksum"

PENDING, IN_PROGRESS, SUCCEEDED, FAILED = "pending", "in-progress", "succeeded", "failed"

RETRY_COOLDOWN = 30.0
DEFAULT_PROBE_PERIOD = 5.0
_UNLIMITED = -1
_PERIODIC_COOLDOWN = 30
_MAX_COOLDOWN = 6


# --- reading -------------------------------------------------------------------------------------------------------


def text(data: Data, key: str) -> str:
    return data.get(key, b"").decode("utf-8", "replace")


def count(data: Data, key: str, default: int = 0) -> int:
    try:
        return int(text(data, key))
    except ValueError:
        return default


def probe_period(data: Data) -> float:
    try:
        period = float(text(data, PROBE_PERIOD) or DEFAULT_PROBE_PERIOD)
    except ValueError:
        return DEFAULT_PROBE_PERIOD
    return period if 0 < period < float("inf") else DEFAULT_PROBE_PERIOD


def failures_of(data: Data, checksum: str) -> int:
    """Return how often this plan has failed in a row."""
    return count(data, FAILURE_COUNT) if text(data, FAILED_CHECKSUM) == checksum else 0


class Verdict(NamedTuple):
    run: bool
    attempt: int = 1
    wait_until: Optional[float] = None  # wall clock: when to decide again


def verdict_by_checksum(data: Data, checksum: str, first_pass: bool, wall: float) -> Verdict:
    """Decide without plan-state: run a plan that was not applied, and always the first one after a start."""
    failures = failures_of(data, checksum)
    if failures:
        limit = count(data, MAX_FAILURES, _UNLIMITED)
        if limit != _UNLIMITED and failures >= limit:
            return Verdict(False)
        last = outputs.parse_unix_date(text(data, LAST_APPLY_TIME))
        if last is not None and last <= wall < last + RETRY_COOLDOWN:
            return Verdict(False, wait_until=last + RETRY_COOLDOWN)
    return Verdict(first_pass or text(data, APPLIED_CHECKSUM) != checksum, failures + 1)


class Identity(NamedTuple):
    """The program of this agent, as it is reported. Empty values are not reported."""

    version: str = ""
    checksum: str = ""  # SHA-256 of the file


ANONYMOUS = Identity()


def is_identified(data: Data, identity: Identity) -> bool:
    """Whether the Secret names this agent."""
    return with_identity(data, identity) == data


def with_identity(data: Data, identity: Identity) -> Data:
    named = ((AGENT_VERSION, identity.version), (AGENT_CHECKSUM, identity.checksum))
    return {**data, **{key: value.encode() for key, value in named if value}}


def already_reported(data: Data, checksum: str, result: Result) -> bool:
    """Without plan-state: whether the Secret already has this result."""
    reported = text(data, APPLIED_CHECKSUM if result.succeeded else FAILED_CHECKSUM)
    return reported == checksum and text(data, LAST_APPLY_TIME) == outputs.unix_date(result.at)


# --- writing -------------------------------------------------------------------------------------------------------


def with_report(data: Data, checksum: str, result: Result) -> Data:
    """Return the data with the result of a run, except probes and periodic instructions."""
    new = dict(data)
    new[LAST_APPLY_TIME] = outputs.unix_date(result.at).encode()
    packed = outputs.pack({name: outputs.to_base64(each) for name, each in result.outputs.items()})
    if result.succeeded:
        new[APPLIED_CHECKSUM] = checksum.encode()
        new[APPLIED_OUTPUT] = packed
        new[SUCCESS_COUNT] = _decimal(count(data, SUCCESS_COUNT) + 1)
        new[FAILURE_COUNT] = b"0"
        new[FAILED_CHECKSUM] = new[FAILED_OUTPUT] = b""
        if FAILED_EVIDENCE in new:
            new[FAILED_EVIDENCE] = b""
    else:
        new[FAILED_CHECKSUM] = checksum.encode()
        new[FAILED_OUTPUT] = packed
        new[FAILURE_COUNT] = _decimal(failures_of(data, checksum) + 1)
        new[SUCCESS_COUNT] = b"0"
        new[FAILED_EVIDENCE] = _evidence(result.evidence)
        if text(data, APPLIED_CHECKSUM) == checksum:
            new[APPLIED_CHECKSUM] = b""
    if STATE in data:
        new[STATE] = (SUCCEEDED if result.succeeded else FAILED).encode()
    return new


def without_outputs(result: Result) -> Result:
    """Return a result that is small enough to be reported."""
    evidence = result.evidence
    if evidence is not None:
        evidence = evidence._replace(error=(evidence.error + " (outputs were too large to report)").strip())
    return result._replace(outputs={}, periodic={}, evidence=evidence)


def with_newer(data: Data, checksum: str, revision: int) -> Data:
    """Return the data with the plan that was applied after the one in the Secret."""
    return {**data, LOCAL_CHECKSUM: checksum.encode(), LOCAL_REVISION: _decimal(revision)}


def with_periodic(data: Data, ran: Dict[str, PeriodicOutput]) -> Data:
    new = dict(data)
    if ran or PERIODIC_OUTPUT not in data:
        known = outputs.periodic_from(data.get(PERIODIC_OUTPUT, b""))
        known.update(ran)
        new[PERIODIC_OUTPUT] = outputs.pack_periodic(known)
    return new


def with_probes(
    data: Data, statuses: Dict[str, ProbeStatus], errors: Dict[str, str], service: Tuple[str, str] = ("", "")
) -> Data:
    """`service`: unit and state of the failing service behind the probes, which is reported like a probe."""
    new = dict(data)
    new[PROBE_STATUSES] = outputs.pack_probe_statuses(statuses)
    unhealthy = {name: error for name, error in errors.items() if error and not statuses[name].healthy}
    if unhealthy and service[0]:
        unhealthy[service[0]] = service[1]
    if unhealthy or PROBE_ERRORS in data:
        new[PROBE_ERRORS] = outputs.compact(unhealthy)
    return new


def _decimal(number: int) -> bytes:
    return str(number).encode()


def _evidence(evidence: Optional[Evidence]) -> bytes:
    if evidence is None:
        return b""
    value = {
        "instruction": evidence.instruction,
        "index": evidence.position,
        "exitCode": evidence.exit_code,
        "error": evidence.error,
        "tail": evidence.tail,
    }
    return json.dumps(value).encode()


# --- periodic instructions -----------------------------------------------------------------------------------------


def periodic_due(periodic: PeriodicInstruction, last: Optional[PeriodicOutput], wall: float) -> float:
    """Return when it may run (wall clock). Times in the future come from a wrong clock and are ignored."""
    due = wall
    if last is not None:
        success = outputs.parse_unix_date(last.last_success)
        if success is not None and success <= wall:
            due = max(due, success + periodic.period)
        failure = outputs.parse_unix_date(last.last_failure)
        if failure is not None and failure <= wall:
            due = max(due, failure + _PERIODIC_COOLDOWN * min(max(last.failures, 1), _MAX_COOLDOWN))
    return due


def periodic_ran(
    periodic: PeriodicInstruction, last: Optional[PeriodicOutput], finished: Finished, wall: float
) -> PeriodicOutput:
    now = outputs.unix_date(wall)
    failed = finished.exit_code != 0
    return PeriodicOutput(
        name=periodic.instruction.name,
        stdout=outputs.as_lines(finished.stdout) or None,
        stderr=(outputs.as_lines(finished.stderr) or None) if periodic.save_stderr else b"",
        exit_code=finished.exit_code,
        last_success=(last.last_success if last else "") if failed else now,
        failures=(last.failures if last else 0) + 1 if failed else 0,
        last_failure=now if failed else "",
    )


def periodic_attempt(last: Optional[PeriodicOutput]) -> int:
    return (last.failures if last else 0) + 1


# --- probes --------------------------------------------------------------------------------------------------------


def probe_answered(probe: Probe, status: ProbeStatus, succeeded: bool) -> ProbeStatus:
    """Health changes when a threshold of consecutive results is reached; counting stops there."""
    if succeeded:
        successes = min(status.successes + 1, probe.success_threshold)
        return ProbeStatus(status.healthy or successes >= probe.success_threshold, successes, 0)
    failures = min(status.failures + 1, probe.failure_threshold)
    return ProbeStatus(status.healthy and failures < probe.failure_threshold, 0, failures)


def is_service_news(data: Data, service: Tuple[str, str]) -> bool:
    """Whether the state of a failing service must be reported: at first, and each time its restarts have doubled."""
    unit, state = service
    try:
        known = json.loads(data.get(PROBE_ERRORS) or b"{}")
        before = str(known.get(unit, "")) if isinstance(known, dict) else ""
    except ValueError:
        before = ""
    return bool(unit) and _restarts(state) >= 2 * max(_restarts(before), 0 if not before else 1)


def _restarts(state: str) -> int:
    found = re.search(r", (\d{1,9}) restarts", state)
    return int(found.group(1)) if found else 0


def worth_reporting(probes: List[Probe], reported: Dict[str, ProbeStatus], known: Dict[str, ProbeStatus]) -> bool:
    """Whether probe changes must be reported: a probe was added or removed, health changed, or a count
    reached its end.
    """
    if set(reported) != set(known):
        return True
    for probe in probes:
        was, now = reported[probe.name], known[probe.name]
        settled = now.successes >= probe.success_threshold or now.failures >= probe.failure_threshold
        if was.healthy != now.healthy or (settled and was != now):
            return True
    return False
