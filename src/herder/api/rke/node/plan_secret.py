"""A machine's plan Secret: the plan issued to the node, and the status its agent reports.

`plan-state` is authoritative if the agent writes it. Agents without plan-state support leave it `pending`; for those,
the applied checksum decides, and issuing a plan again removes the old checksum in the same write.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, TypeVar

import msgspec

from herder.api.gzipped import gunzip
from herder.api.numbers import INT64_MAX, parse_int64
from herder.api.rke.names import CONTROL_PLANE_ROLE, ETCD_ROLE, INIT_NODE, OPERATING_SYSTEM, PROBES_PASSED, WORKER_ROLE
from herder.api.rke.node.plan import Plan, checksum
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
# written only by our own agent: why the plan failed, and errors of probes
FAILED_EVIDENCE, PROBE_ERRORS = "failed-evidence", "probe-errors"
# likewise: the program of the agent
AGENT_VERSION, AGENT_CHECKSUM = "agent-version", "agent-checksum"
# likewise: the last plan that the machine has applied, if that is newer than the plan of a restored Secret
LOCAL_CHECKSUM, LOCAL_REVISION = "local-applied-checksum", "local-plan-revision"

T = TypeVar("T")

# A node writes all of the above, and a compromised node writes anything: oversized values are not decoded, and text is
# truncated before it gets into conditions, whose length the API limits. Editors of the namespace write plans too.
_MAX_OUTPUT = 4 << 20
# Decoding takes as long as there are objects and strings, and blocks all other requests.
_MAX_OBJECTS = 16 << 10
_MAX_PLAN_QUOTES = 128 << 10  # Clusters have up to 20,000 values, so no plan of ours has more files or arguments
_MAX_REPORT_QUOTES = 32 << 10
_MAX_OUTPUT_QUOTES = 8 << 10  # of all instructions; each output is base64
_MAX_STATUS = 256 << 10
_MAX_NAME, _MAX_ERROR, MAX_TAIL = 128, 1024, 4096
_MAX_PROBES = 16
_UNREADABLE = PROBE_STATUSES  # name of the failing probe that stands for statuses that cannot be decoded

Int64 = Annotated[int, msgspec.Meta(ge=-INT64_MAX - 1, le=INT64_MAX)]


class PeriodicOutput(msgspec.Struct, frozen=True, rename="camel"):
    """The last run of a periodic instruction; times are in Go's UnixDate format."""

    name: str = ""
    stdout: bytes | None = None
    stderr: bytes | None = None
    exit_code: Int64 = 0
    last_successful_run_time: str = ""
    failures: Int64 = 0
    last_failed_run_time: str = ""


_PROGRESS = re.compile(r"[IWE]\d{4} |\s*\[|time=\S+ level=(?:debug|info|warning)\b|warning:", re.IGNORECASE)


class Evidence(msgspec.Struct, frozen=True, rename="camel"):
    """Why a plan failed, as reported by our own agent."""

    instruction: str = ""
    exit_code: Int64 = 0
    error: str = ""
    tail: str = ""

    @property
    def cause(self) -> str:
        """The first line of the output that is not progress or a warning of kubeadm, K3s or klog."""
        lines = [line for line in self.tail.splitlines() if line.strip()]
        return next((line for line in lines if not _PROGRESS.match(line)), lines[0] if lines else "")


class ProbeStatus(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    healthy: bool = False
    success_count: Int64 = 0
    failure_count: Int64 = 0


@dataclass(frozen=True)
class PlanSecret:
    """A plan Secret, decoded lazily: most readers need only the state."""

    secret: Object

    # --- identity ---------------------------------------------------------------------------------------------------

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

    # --- plan -------------------------------------------------------------------------------------------------------

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
        """Whether the agent has completed any plan.

        `appliedPlan` is recorded a moment after the success is reported, and another plan may be issued in between.
        """
        return self.has_applied_plan or self.number(SUCCESS_COUNT) > 0

    @cached_property
    def checksum(self) -> str:
        return checksum(self.plan_bytes)

    # --- status -----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        return self.text(STATE)

    @property
    def revision(self) -> int:
        """How many times the agent has started a plan; 0 if it does not count."""
        return self.number(REVISION)

    @property
    def newer_applied(self) -> str:
        """Checksum of a newer plan that the machine has applied; "" if this Secret has the newest."""
        if self.number(LOCAL_REVISION) <= self.revision:
            return ""
        return printable(self.text(LOCAL_CHECKSUM), _MAX_NAME)

    @property
    def agent_version(self) -> str:
        """Version of the agent; "" if it does not report any."""
        return printable(self.text(AGENT_VERSION), _MAX_NAME)

    @property
    def agent_checksum(self) -> str:
        """SHA-256 of the agent's program; "" if it does not report any."""
        return printable(self.text(AGENT_CHECKSUM), _MAX_NAME)

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
        """Whether the current plan is applied, its probes pass and it is recorded as applied."""
        return self.in_sync and self.healthy and self.has_applied_plan

    @property
    def is_moving(self) -> bool:
        """Whether a plan is in flight: neither applied nor failed."""
        return self.has_plan and not self.in_sync and not self.failed

    @property
    def is_broken(self) -> bool:
        """Whether the plan failed or probes fail; the node may still serve others."""
        return self.failed or (self.has_plan and not self.is_moving and not self.healthy)

    @property
    def is_down(self) -> bool:
        return self.is_moving or self.is_broken

    @property
    def serves(self) -> bool:
        """Whether probes pass and no plan is in flight. After a failed plan, only probes reported since count."""
        return not self.is_moving and self.healthy and (not self.failed or bool(self.probe_statuses))

    @cached_property
    def failed(self) -> bool:
        """By state; for agents without plan-state, whether this plan has failed often enough."""
        if self.state == FAILED:
            return True
        if self.state in (IN_PROGRESS, SUCCEEDED) or not self.has_plan:
            return False
        threshold = self.number(FAILURE_THRESHOLD, 1)
        count = self.number(FAILURE_COUNT)
        return 0 < threshold <= count and self.text(FAILED_CHECKSUM) == self.checksum

    @cached_property
    def probe_statuses(self) -> Mapping[str, ProbeStatus]:
        """Statuses by probe. If they cannot be decoded, one that fails: a node that hides its probes is not healthy."""
        raw = self.raw(PROBE_STATUSES)
        if not raw or raw == b"null":
            return {}
        found = self._status(PROBE_STATUSES, dict[str, ProbeStatus])
        return {_UNREADABLE: ProbeStatus()} if found is None else found

    @property
    def healthy(self) -> bool:
        return all(status.healthy for status in self.probe_statuses.values())

    @property
    def unhealthy_probes(self) -> list[str]:
        """Names of failing probes for messages; those beyond the first few are counted."""
        found = sorted(name for name, status in self.probe_statuses.items() if not status.healthy)
        more = [f"{len(found) - _MAX_PROBES} more"] if len(found) > _MAX_PROBES else []
        return [printable(name, _MAX_NAME) for name in found[:_MAX_PROBES]] + more

    @property
    def probes_passed(self) -> bool:
        """Whether all probes have passed at least once since this plan was written."""
        return bool(self.annotations.get(PROBES_PASSED))

    @cached_property
    def outputs(self) -> Mapping[str, bytes]:
        return _unzipped(self.raw(APPLIED_OUTPUT), dict[str, bytes]) or {}

    @cached_property
    def failed_outputs(self) -> Mapping[str, bytes]:
        return _unzipped(self.raw(FAILED_OUTPUT), dict[str, bytes]) or {}

    @cached_property
    def evidence(self) -> Evidence | None:
        """Why the plan failed. Other agents report no evidence; then the output of the last instruction is used."""
        if evidence := self._status(FAILED_EVIDENCE, Evidence):
            return _truncated(evidence)
        ran = [each.name for each in (self.plan.instructions if self.plan else ()) if each.name in self.failed_outputs]
        if not ran:
            return None
        return _truncated(Evidence(ran[-1], tail=self.failed_outputs[ran[-1]].decode(errors="replace")))

    @cached_property
    def probe_errors(self) -> Mapping[str, str]:
        found = sorted((self._status(PROBE_ERRORS, dict[str, str]) or {}).items())[:_MAX_PROBES]
        return {
            printable(name, _MAX_NAME): printable(_first_words(error, _MAX_ERROR), _MAX_ERROR) for name, error in found
        }

    @cached_property
    def periodic_outputs(self) -> Mapping[str, PeriodicOutput]:
        return _unzipped(self.raw(PERIODIC_OUTPUT), dict[str, PeriodicOutput]) or {}

    # --- data -------------------------------------------------------------------------------------------------------

    def raw(self, key: str) -> bytes:
        """Return a decoded value; empty if it is missing or invalid."""
        try:
            return base64.b64decode(self._data.get(key) or "")
        except ValueError:
            return b""

    def text(self, key: str) -> str:
        return self.raw(key).decode(errors="replace")

    def number(self, key: str, default: int = 0) -> int:
        return parse_int64(self.text(key).strip(), default)

    def _status(self, key: str, kind: type[T]) -> T | None:
        """Decode a small report; None if it is missing, too large or invalid."""
        raw = self.raw(key)
        return decode_report(raw, kind) if len(raw) <= _MAX_STATUS else None

    @property
    def _data(self) -> Mapping[str, str]:
        return self.secret.get("data") or {}


def encoded(text: str | bytes) -> str:
    """Encode a value for a Secret's data."""
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def zipped(value: Any) -> bytes:
    """Encode outputs as gzip(JSON), deterministically."""
    packer = zlib.compressobj(wbits=31)
    return packer.compress(msgspec.json.encode(value, order="sorted")) + packer.flush()


def _plan(raw: bytes) -> Plan | None:
    return decode_report(raw, Plan, _MAX_PLAN_QUOTES)


def decode_report(raw: bytes, kind: type[T], max_quotes: int = _MAX_REPORT_QUOTES) -> T | None:
    """Decode JSON of a node; None if it is missing or invalid, or if decoding would block the event loop."""
    if not raw or raw.count(b"{") > _MAX_OBJECTS or raw.count(b'"') > max_quotes:
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except (ValueError, RecursionError):  # ValueError includes invalid UTF-8
        return None


def _truncated(evidence: Evidence) -> Evidence:
    return Evidence(
        printable(evidence.instruction, _MAX_NAME),
        evidence.exit_code,
        printable(_first_words(evidence.error, _MAX_ERROR), _MAX_ERROR),
        printable(_last_words(evidence.tail, MAX_TAIL), MAX_TAIL),
    )


# Tokens in these texts are redacted later, and only as a whole. So texts are cut between words.


def _first_words(text: str, limit: int) -> str:
    return text if len(text) <= limit else "".join(text[:limit].rsplit(maxsplit=1)[:-1])


def _last_words(text: str, limit: int) -> str:
    return text if len(text) <= limit else "".join(text[-limit:].split(maxsplit=1)[1:])


def _unzipped(raw: bytes, kind: type[T]) -> T | None:
    if not raw:
        return None
    try:
        content = gunzip(raw, _MAX_OUTPUT)
    except ValueError:
        return None
    return decode_report(content, kind, _MAX_OUTPUT_QUOTES)
