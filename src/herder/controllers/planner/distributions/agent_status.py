"""Why the pod of the cluster agent does not start, as reported by a server of the cluster.

Until the agent is connected, the manager cannot read the cluster. A periodic instruction runs kubectl on a server
instead and prints pods and Warning Events, one record per line. Fields are URL-encoded, so that no value contains the
separators. Nodes control this output: everything is bounded, and malformed lines are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import unquote_plus

from herder.api.management.manifest import NAME
from herder.api.management.names import SYSTEM_NAMESPACE
from herder.api.rke.node.plan import AGENT_STATUS, PeriodicInstruction
from herder.api.rke.node.plan_secret import PeriodicOutput
from herder.engine.meta.printable import printable

PERIOD_SECONDS = 30
_MAX_RECORDS = 40
_MAX_BYTES = 256 << 10
_MAX_NAME, _MAX_REASON, _MAX_MESSAGE = 253, 128, 512
_MAX_DESCRIPTION = 1024
_STARTING = ("", "ContainerCreating", "PodInitializing")  # reasons of containers that may still start
_REPEAT = re.compile(r"Error: \w+")
"""Message of an Event that repeats the reason of the container, and lacks the cause that an earlier Event has."""


# --- instruction ------------------------------------------------------------------------------------------------------


def status_instruction(command: str, *arguments: str, env: tuple[str, ...] = ()) -> PeriodicInstruction:
    """The instruction. `command` and `arguments` call the kubectl of the distribution as an administrator."""
    query = ("get", "pods,events", f"--namespace={SYSTEM_NAMESPACE}", "--request-timeout=10s")
    return PeriodicInstruction(
        name=AGENT_STATUS,
        command=command,
        args=(*arguments, *query, f"--output=go-template={_TEMPLATE}"),
        env=env,
        period_seconds=PERIOD_SECONDS,
        save_stderr_output=True,
    )


def _encoded(value: str, length: int) -> str:
    """Template of one field. Missing values are empty."""
    return f'{{{{printf "%.{length}s" (or {value} "") | urlquery}}}}'


def _record(kind: str, *fields: tuple[str, int]) -> str:
    """Template of one line. The length of `$seen` counts the lines: templates cannot add numbers."""
    line = " ".join((kind, *(_encoded(value, length) for value, length in fields)))
    return f'{{{{if lt (len $seen) {_MAX_RECORDS}}}}}{{{{$seen = printf "%s." $seen}}}}{line}{{{{"\\n"}}}}{{{{end}}}}'


def _container(state: str, path: str) -> str:
    fields = ((".reason", _MAX_REASON), (".message", _MAX_MESSAGE), ('(printf "%v" (or .exitCode ""))', _MAX_REASON))
    return f"{{{{with {path}}}}}{_record(f'container {state}', *fields)}{{{{end}}}}"


def _template() -> str:
    is_agent = f'eq (printf "%.{len(NAME)}s" {{}}) "{NAME}"'
    pod = _record(
        "pod",
        (".metadata.name", _MAX_NAME),
        (".metadata.creationTimestamp", _MAX_REASON),
        (".status.phase", _MAX_REASON),
        (".status.reason", _MAX_REASON),
        (".status.message", _MAX_MESSAGE),
    )
    unscheduled = _record("unscheduled", (".reason", _MAX_REASON), (".message", _MAX_MESSAGE))
    states = (("waiting", ".state.waiting"), ("terminated", ".state.terminated"), ("last", ".lastState.terminated"))
    containers = "".join(_container(state, path) for state, path in states)  # those of init containers are in Events
    event = _record(
        "event",
        ("(or .lastTimestamp .eventTime .metadata.creationTimestamp)", _MAX_REASON),
        (".involvedObject.name", _MAX_NAME),
        (".reason", _MAX_REASON),
        (".message", _MAX_MESSAGE),
    )
    return (
        '{{$seen := ""}}{{range .items}}'
        f'{{{{if eq .kind "Pod"}}}}{{{{if {is_agent.format(".metadata.name")}}}}}{pod}'
        '{{range .status.conditions}}{{if eq .type "PodScheduled"}}{{if eq .status "False"}}'
        f"{unscheduled}{{{{end}}}}{{{{end}}}}{{{{end}}}}"
        f"{{{{range .status.containerStatuses}}}}{containers}{{{{end}}}}{{{{end}}}}"
        f'{{{{else if eq (or .type "") "Warning"}}}}{{{{if {is_agent.format(".involvedObject.name")}}}}}{event}'
        "{{end}}{{end}}{{end}}"
    )


_TEMPLATE = _template()


# --- output -----------------------------------------------------------------------------------------------------------


class _Event(NamedTuple):
    time: str
    name: str  # of the object
    reason: str
    message: str


@dataclass
class _Pod:
    name: str
    created: str
    phase: str
    problems: list[str] = field(default_factory=list)
    last_exit: str = ""
    starting: str = ""  # reason of a container that may still start


def describe_agent(output: PeriodicOutput | None) -> str:
    """Describe in one line why the cluster agent is not connected; empty if nothing is reported yet."""
    if output is None or not (output.last_successful_run_time or output.last_failed_run_time):
        return ""
    if output.exit_code:
        return _bounded(f"its pods cannot be listed: {_text(output.stderr) or f'exit code {output.exit_code}'}")
    pods, events = _parse(_text(output.stdout))
    newest = max(pods, key=lambda pod: (pod.created, pod.name), default=None)
    last = _last_event(events, newest.name if newest else "")
    if newest is None:
        return _bounded(f"it has no pod in namespace {SYSTEM_NAMESPACE}" + (f": {last}" if last else ""))
    return _bounded(f"{newest.name}: {_describe_pod(newest, last)}")


def _describe_pod(pod: _Pod, last_event: str) -> str:
    parts = [*pod.problems[:1], *([pod.last_exit] if pod.last_exit else [])]
    if pod.phase == "Running" and not parts:
        return f"it runs, but it has not connected; see kubectl logs -n {SYSTEM_NAMESPACE} {pod.name}"
    _, _, said = last_event.partition(": ")
    parts += [last_event] if said and not any(said in part for part in parts) else []
    return "; ".join(parts) or pod.starting or pod.phase


def _last_event(events: list[_Event], pod: str) -> str:
    """The last Warning about the pod; about any of the agent's objects if it has no pod."""
    own = [each for each in events if (each.name == pod or not pod) and not _REPEAT.fullmatch(each.message)]
    last = max(own, default=None)
    return _reason(last.reason, last.message) if last else ""


def _parse(text: str) -> tuple[list[_Pod], list[_Event]]:
    pods: list[_Pod] = []
    events: list[_Event] = []
    for record in _records(text):
        match record:
            case ["pod", name, created, phase, reason, message]:
                pods.append(_Pod(name, created, phase, [_reason(reason, message)] if reason else []))
            case ["unscheduled", reason, message] if pods:
                pods[-1].problems.append(_reason(reason, message))
            case ["container", "waiting", reason, _, _] if pods and reason in _STARTING:
                pods[-1].starting = reason
            case ["container", "waiting", reason, message, _] if pods:
                pods[-1].problems.append(_reason(reason, message))
            case ["container", "terminated" | "last", reason, message, code] if pods and code:
                pods[-1].last_exit = f"exit code {code}: {_reason(reason, message)}"
            case ["event", time, name, reason, message]:
                events.append(_Event(time, name, reason, message))
    return pods, events


def _records(text: str) -> Iterator[list[str]]:
    for line in text.splitlines()[:_MAX_RECORDS]:
        yield [unquote_plus(each, errors="replace") for each in line.split(" ", 8)]


def _reason(reason: str, message: str) -> str:
    return f"{reason}: {message}" if message else reason


def _text(output: bytes | None) -> str:
    return (output or b"")[:_MAX_BYTES].decode(errors="replace")


def _bounded(text: str) -> str:
    """One line of limited length without control characters."""
    line = " ".join(text[: 2 * _MAX_DESCRIPTION].split())
    return printable(line if len(line) <= _MAX_DESCRIPTION else f"{line[: _MAX_DESCRIPTION - 1]}…")
