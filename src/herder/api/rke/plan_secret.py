"""A machine's plan Secret, as its readers understand it: what was asked of the node, and what became of it.

`plan-state` is the truth wherever an agent writes it. Agents that do not know it leave it `pending` and are understood
by the checksum that they applied: whoever asks anew takes the old checksum away in the same write.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, TypeVar

import msgspec

from herder.api.gzipped import gunzip
from herder.api.numbers import LARGEST, integer
from herder.api.rke.names import CONTROL_PLANE_ROLE, ETCD_ROLE, INIT_NODE, OPERATING_SYSTEM, PROBES_PASSED, WORKER_ROLE
from herder.api.rke.plan import Plan, checksum
from herder.engine.meta.kinds import Object
from herder.engine.meta.printable import printable

PLAN, APPLIED_PLAN = "plan", "appliedPlan"
STATE, REVISION = "plan-state", "plan-revision"
PENDING, IN_PROGRESS, SUCCEEDED, FAILED = "pending", "in-progress", "succeeded", "failed"
APPLIED_CHECKSUM, FAILED_CHECKSUM = "applied-checksum", "failed-checksum"
APPLIED_OUTPUT, FAILED_OUTPUT, PERIODIC_OUTPUT = "applied-output", "failed-output", "applied-periodic-output"
FAILURE_COUNT, SUCCESS_COUNT = "failure-count", "success-count"
MAX_FAILURES, FAILURE_THRESHOLD = "max-failures", "failure-threshold"
LAST_APPLY = "last-apply-time"
PROBE_STATUSES = "probe-statuses"
FAILED_EVIDENCE, PROBE_ERRORS = "failed-evidence", "probe-errors"  # our own agent's: why it failed, what probes said

T = TypeVar("T")

# A node writes all of the above, and a compromised node writes anything: what is larger than an agent makes it is not
# decoded, and text is shortened before it gets into conditions, whose length the API limits.
_LARGEST_OUTPUT = 4 << 20
_LARGEST_STATUS = 256 << 10
_LONGEST_NAME, _LONGEST_ERROR, _LONGEST_TAIL = 128, 1024, 4096
_MOST_PROBES = 16
_UNREADABLE = PROBE_STATUSES  # the name of the probe that fails where the statuses cannot be decoded

Int64 = Annotated[int, msgspec.Meta(ge=-LARGEST - 1, le=LARGEST)]


class PeriodicOutput(msgspec.Struct, frozen=True, rename="camel"):
    """The last run of a periodic instruction; times as Go's UnixDate writes them."""

    name: str = ""
    stdout: bytes | None = None
    stderr: bytes | None = None
    exit_code: Int64 = 0
    last_successful_run_time: str = ""
    failures: Int64 = 0
    last_failed_run_time: str = ""


class Evidence(msgspec.Struct, frozen=True, rename="camel"):
    """Why a plan failed, as our own agent tells it."""

    instruction: str = ""
    exit_code: Int64 = 0
    error: str = ""
    tail: str = ""


class ProbeStatus(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    healthy: bool = False
    success_count: Int64 = 0
    failure_count: Int64 = 0


@dataclass(frozen=True)
class PlanSecret:
    """Decodes what is asked for, when it is asked for: most readers need the state alone."""

    secret: Object

    # --- whose it is ------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return str(self.secret["metadata"]["name"])

    @property
    def labels(self) -> Mapping[str, str]:
        return self.secret["metadata"].get("labels") or {}

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.secret["metadata"].get("annotations") or {}

    @property
    def is_etcd(self) -> bool:
        return self.labels.get(ETCD_ROLE) == "true"

    @property
    def is_control_plane(self) -> bool:
        return self.labels.get(CONTROL_PLANE_ROLE) == "true"

    @property
    def is_worker(self) -> bool:
        return self.labels.get(WORKER_ROLE) == "true"

    @property
    def is_init(self) -> bool:
        return self.labels.get(INIT_NODE) == "true"

    @property
    def is_windows(self) -> bool:
        return self.labels.get(OPERATING_SYSTEM) == "windows"

    # --- what was asked ---------------------------------------------------------------------------------------------

    @cached_property
    def plan_bytes(self) -> bytes:
        return self.raw(PLAN)

    @property
    def has_plan(self) -> bool:
        return bool(self._data.get(PLAN))

    @cached_property
    def plan(self) -> Plan | None:
        return _plan(self.plan_bytes)

    @cached_property
    def applied_plan(self) -> Plan | None:
        return _plan(self.raw(APPLIED_PLAN))

    @property
    def has_applied_plan(self) -> bool:
        return bool(self._data.get(APPLIED_PLAN))

    @property
    def has_run_a_plan(self) -> bool:
        """As its agent tells: what it applied is written down a moment later, and another plan may be given before."""
        return self.has_applied_plan or self.number(SUCCESS_COUNT) > 0

    @cached_property
    def checksum(self) -> str:
        return checksum(self.plan_bytes)

    # --- what became of it ------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        return self.text(STATE)

    @property
    def revision(self) -> int:
        """How many times an agent has begun; 0 where it does not count."""
        return self.number(REVISION)

    @cached_property
    def in_sync(self) -> bool:
        if not self.has_plan:
            return False
        if self.state in ("", PENDING):
            applied = self.text(APPLIED_CHECKSUM)
            return bool(applied) and applied == self.checksum
        return self.state == SUCCEEDED

    @property
    def is_done(self) -> bool:
        """Nothing is left to happen with the plan that it has."""
        return self.in_sync and self.healthy and self.has_applied_plan

    @property
    def is_moving(self) -> bool:
        """It was asked for something, and is neither done with it nor has failed."""
        return self.has_plan and not self.in_sync and not self.failed

    @property
    def is_broken(self) -> bool:
        """Its plan failed, or what runs there is not well; it may still serve others."""
        return self.failed or (self.has_plan and not self.is_moving and not self.healthy)

    @property
    def is_down(self) -> bool:
        return self.is_moving or self.is_broken

    @property
    def serves(self) -> bool:
        """What runs there is well, whatever became of its plan: after a failure only what was reported since counts."""
        return not self.is_moving and self.healthy and (not self.failed or bool(self.probe_statuses))

    @cached_property
    def failed(self) -> bool:
        """By its state; an agent that writes none failed where it tried this very plan often enough."""
        if self.state == FAILED:
            return True
        if self.state in (IN_PROGRESS, SUCCEEDED) or not self.has_plan:
            return False
        threshold = self.number(FAILURE_THRESHOLD, 1)
        count = self.number(FAILURE_COUNT)
        return 0 < threshold <= count and self.text(FAILED_CHECKSUM) == self.checksum

    @cached_property
    def probe_statuses(self) -> Mapping[str, ProbeStatus]:
        """One that fails where the report cannot be decoded: a node that hides its probes is not healthy."""
        raw = self.raw(PROBE_STATUSES)
        if not raw or raw == b"null":
            return {}
        found = _decoded(raw, dict[str, ProbeStatus]) if len(raw) <= _LARGEST_STATUS else None
        return {_UNREADABLE: ProbeStatus()} if found is None else found

    @property
    def healthy(self) -> bool:
        return all(status.healthy for status in self.probe_statuses.values())

    @property
    def unhealthy_probes(self) -> list[str]:
        """Names for messages: a number stands for those beyond the first few."""
        found = sorted(name for name, status in self.probe_statuses.items() if not status.healthy)
        more = [f"{len(found) - _MOST_PROBES} more"] if len(found) > _MOST_PROBES else []
        return [printable(name, _LONGEST_NAME) for name in found[:_MOST_PROBES]] + more

    @property
    def probes_passed(self) -> bool:
        """All of them, at least once since this plan was written."""
        return bool(self.annotations.get(PROBES_PASSED))

    @cached_property
    def outputs(self) -> Mapping[str, bytes]:
        return _unzipped(self.raw(APPLIED_OUTPUT), dict[str, bytes]) or {}

    @cached_property
    def failed_outputs(self) -> Mapping[str, bytes]:
        return _unzipped(self.raw(FAILED_OUTPUT), dict[str, bytes]) or {}

    @cached_property
    def evidence(self) -> Evidence | None:
        """As far as the agent tells it: others leave what the last instruction that ran has said."""
        if evidence := self._status(FAILED_EVIDENCE, Evidence):
            return _shortened(evidence)
        ran = [each.name for each in (self.plan.instructions if self.plan else ()) if each.name in self.failed_outputs]
        if not ran:
            return None
        return _shortened(Evidence(ran[-1], tail=self.failed_outputs[ran[-1]].decode(errors="replace")))

    @cached_property
    def probe_errors(self) -> Mapping[str, str]:
        found = sorted((self._status(PROBE_ERRORS, dict[str, str]) or {}).items())[:_MOST_PROBES]
        return {printable(name, _LONGEST_NAME): printable(error, _LONGEST_ERROR) for name, error in found}

    @cached_property
    def periodic_outputs(self) -> Mapping[str, PeriodicOutput]:
        return _unzipped(self.raw(PERIODIC_OUTPUT), dict[str, PeriodicOutput]) or {}

    # --- the data itself --------------------------------------------------------------------------------------------

    def raw(self, key: str) -> bytes:
        """Nothing where there is nothing, or nothing that can be read."""
        try:
            return base64.b64decode(self._data.get(key) or "")
        except ValueError:
            return b""

    def text(self, key: str) -> str:
        return self.raw(key).decode(errors="replace")

    def number(self, key: str, default: int = 0) -> int:
        return integer(self.text(key).strip(), default)

    def _status(self, key: str, kind: type[T]) -> T | None:
        """A small report; None where it is missing, too large or cannot be decoded."""
        raw = self.raw(key)
        return _decoded(raw, kind) if len(raw) <= _LARGEST_STATUS else None

    @property
    def _data(self) -> Mapping[str, str]:
        return self.secret.get("data") or {}


def encoded(text: str | bytes) -> str:
    """As a Secret's data holds it."""
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def zipped(value: Any) -> bytes:
    """Outputs as they are written back; the same value is always the same bytes."""
    packer = zlib.compressobj(wbits=31)
    return packer.compress(msgspec.json.encode(value, order="sorted")) + packer.flush()


def _plan(raw: bytes) -> Plan | None:
    return _decoded(raw, Plan)


def _decoded(raw: bytes, kind: type[T]) -> T | None:
    if not raw:
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except (ValueError, RecursionError):  # also what is not UTF-8, or nested too deeply
        return None


def _shortened(evidence: Evidence) -> Evidence:
    return Evidence(
        printable(evidence.instruction, _LONGEST_NAME),
        evidence.exit_code,
        printable(evidence.error, _LONGEST_ERROR),
        printable(evidence.tail[-_LONGEST_TAIL:], _LONGEST_TAIL),
    )


def _unzipped(raw: bytes, kind: type[T]) -> T | None:
    if not raw:
        return None
    try:
        content = gunzip(raw, _LARGEST_OUTPUT)
    except ValueError:
        return None
    return _decoded(content, kind)
