"""Summarize several conditions of one object, or aggregate one condition of many objects.

Issues take precedence over unknown conditions, and those over information. Users and clusterctl read the messages, so
their format is part of the API: bullets, at most three messages, at most three names in each.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from herder.api.capi.conditions.lists import Condition, condition, find
from herder.api.capi.conditions.mirrored import NOT_YET_REPORTED
from herder.api.capi.names import CONTROL_PLANE, labels_of
from herder.api.capi.plurals import plural
from herder.engine.meta.kinds import Object

MESSAGES_SHOWN = 3
NAMES_SHOWN = 3  # the usual size of a control plane, so that all its machines are named


class Priority(IntEnum):
    ISSUE = 0
    UNKNOWN = 1
    INFO = 2


class Reasons(NamedTuple):
    """Reasons of the resulting condition, by priority."""

    issue: str
    unknown: str
    info: str


PriorityOf = Callable[[Condition], Priority]


def default_priority(known: Condition, negative: Collection[str] = ()) -> Priority:
    """Classify a condition; `negative` are the types with negative polarity (true is bad)."""
    if known.get("status") not in ("True", "False"):
        return Priority.UNKNOWN
    good = "False" if known["type"] in negative else "True"
    return Priority.INFO if known["status"] == good else Priority.ISSUE


def summary(
    type_: str,
    parts: Iterable[Condition],
    *,
    types: Sequence[str],
    reasons: Reasons,
    negative: Collection[str] = (),
    ignore_if_missing: Collection[str] = (),
    priority: PriorityOf | None = None,
    transform: Callable[[list[str]], list[str]] | None = None,
) -> Condition:
    """Summarize several conditions of one object; the result is true if there are no issues.

    Only `parts` of `types` count, in that order. A missing one is unknown, unless it is in `ignore_if_missing`.
    `priority` overrides the classification by polarity; `transform` edits the bullets of the message.
    """
    by_type = {part["type"]: part for part in parts}
    scope = [
        by_type.get(wanted) or _missing(wanted)
        for wanted in types
        if wanted in by_type or wanted not in ignore_if_missing
    ]
    judged = [(priority(part) if priority else default_priority(part, negative), part) for part in scope]
    top = min((rank for rank, _ in judged), default=Priority.INFO)
    bullets = [_summary_bullet(part) for rank, part in judged if _shown_in_summary(rank, part, top)]
    message = "\n".join(transform(bullets) if transform else bullets)
    return condition(type_, _status(top), reasons[top], message)


def aggregate(
    type_: str,
    objects: Sequence[Object],
    source_type: str,
    *,
    reasons: Reasons,
    none: Condition,
    negative: bool = False,
    find_in: Callable[[Object, str], Condition | None] = find,
) -> Condition:
    """Aggregate the same condition of many objects; `none` if there are no objects.

    If the condition has negative polarity, so does the result.
    """
    if not objects:
        return none
    negatives = (source_type,) if negative else ()
    reports = [_report(obj, find_in(obj, source_type), source_type, negatives) for obj in objects]
    top = min(report.priority for report in reports)
    if top is Priority.INFO:
        messages = [report for report in reports if report.message]
    else:
        messages = [report for report in reports if report.priority is not Priority.INFO]
    return condition(type_, _status(top, negative), reasons[top], "\n".join(_aggregate_lines(messages)))


def indented(message: str) -> str:
    """Format what follows a bullet's colon: the message, or its lines as nested bullets."""
    lines = message.split("\n")
    if len(lines) == 1 and not _BULLET.search(message):
        return f" {message}"
    bulleted = all(_BULLET.search(line) for line in lines)
    return "\n" + "\n".join(_indent(line, bulleted) + line for line in lines)


def _indent(line: str, bulleted: bool) -> str:
    if bulleted:
        return "  "
    return "    " if _BULLET.search(line) else "  * "


def _missing(type_: str) -> Condition:
    return condition(type_, "Unknown", NOT_YET_REPORTED, "Condition not yet reported")


def _status(top: Priority, negative: bool = False) -> str:
    if top is Priority.UNKNOWN:
        return "Unknown"
    return "True" if (top is Priority.INFO) is not negative else "False"


def _shown_in_summary(priority: Priority, part: Condition, top: Priority) -> bool:
    if priority is not Priority.INFO:
        return True
    return top is Priority.INFO and bool(part.get("message"))


def _summary_bullet(part: Condition) -> str:
    return f"* {part['type']}:" + (indented(part["message"]) if part.get("message") else f" {part.get('reason', '')}")


class _Report(NamedTuple):
    kind: str
    name: str
    message: str
    priority: Priority
    control_plane: bool


class _MessageGroup(NamedTuple):
    """A message and the objects of one kind that report it, control plane Machines first."""

    message: str
    names: list[str]
    priority: Priority
    control_plane: bool

    def order(self) -> tuple[bool, Priority, int, str]:
        return not self.control_plane, self.priority, -len(self.names), ",".join(self.names)


def _report(obj: Object, found: Condition | None, type_: str, negative: Collection[str]) -> _Report:
    kind = str(obj.get("kind", ""))
    found = found or condition(type_, "Unknown", NOT_YET_REPORTED, f"Condition {type_} not yet reported")
    return _Report(
        kind,
        obj["metadata"]["name"],
        found.get("message", ""),
        default_priority(found, negative),
        kind == "Machine" and CONTROL_PLANE in labels_of(obj),
    )


def _aggregate_lines(reports: Iterable[_Report]) -> list[str]:
    by_kind: defaultdict[str, list[_Report]] = defaultdict(list)
    for report in reports:
        by_kind[report.kind].append(report)
    lines: list[str] = []
    shown = 0
    for kind in sorted(by_kind):
        groups = _by_message(by_kind[kind])
        room = MESSAGES_SHOWN - shown
        lines += [_aggregate_bullet(kind, each) for each in groups[:room]]
        lines += _others(kind, groups[room:])
        shown += len(groups[:room])
    return lines


def _by_message(reports: Iterable[_Report]) -> list[_MessageGroup]:
    reports_by_message: defaultdict[str, list[_Report]] = defaultdict(list)
    for report in reports:
        reports_by_message[report.message].append(report)
    groups = [
        _MessageGroup(
            message,
            [report.name for report in sorted(group, key=lambda report: (not report.control_plane, report.name))],
            min(report.priority for report in group),
            any(report.control_plane for report in group),
        )
        for message, group in reports_by_message.items()
    ]
    return sorted(groups, key=_MessageGroup.order)


def _aggregate_bullet(kind: str, groups: _MessageGroup) -> str:
    names = ", ".join(groups.names[:NAMES_SHOWN])
    if len(groups.names) > NAMES_SHOWN:
        names += f", ... ({len(groups.names) - NAMES_SHOWN} more)"
    return f"* {_named(kind, len(groups.names))} {names}:{indented(groups.message)}"


def _others(kind: str, groups: Iterable[_MessageGroup]) -> list[str]:
    counts: defaultdict[Priority, int] = defaultdict(int)
    for each in groups:
        counts[each.priority] += len(each.names)
    return [f"And {counts[rank]} {_named(kind, counts[rank])} {_OTHERS[rank]}" for rank in Priority if counts[rank]]


def _named(kind: str, count: int) -> str:
    return kind if count == 1 else plural(kind)


_BULLET = re.compile(r"\*\s")
_OTHERS = {
    Priority.ISSUE: "with other issues",
    Priority.UNKNOWN: "with status unknown",
    Priority.INFO: "with additional info",
}
