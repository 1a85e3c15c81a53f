"""Simulated behavior of an in-memory object, parsed from its annotations (see `names`)."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from herder.api.capi.names import annotations_of
from herder.api.inmemory import names
from herder.engine.meta.kinds import Object

ABSENT = "Absent"
REFUSE, HANG, SLOW = "refuse", "hang", "slow="
MAX_DELAY = 30 * 24 * 3600.0

_DELAY = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(?:±([0-9]{1,3})%)?")
_CONDITION_STATUSES = ("True", "False", "Unknown")
_WORD = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]{0,250}[A-Za-z0-9_])?")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Behavior:
    api_delay: timedelta = timedelta()
    bootstrap_delay: timedelta = timedelta()
    start_delay: timedelta = timedelta()
    node_delay: timedelta = timedelta()
    fail: str = ""
    never_ready: bool = False
    stuck_deletion: bool = False
    node_ready: str = "True"
    node_conditions: dict[str, str] = field(default_factory=dict)
    api_fault: str = ""
    problem: str = ""  # annotations that are invalid; they are ignored


def behavior_of(obj: Object) -> Behavior:
    given = annotations_of(obj)
    seed = obj["metadata"].get("uid", "")
    problems: list[str] = []

    def read(name: str, parse: Callable[[str], T], default: T) -> T:
        if name not in given:
            return default
        try:
            return parse(given[name])
        except ValueError as error:
            problems.append(f"annotation {name}: {given[name][:100]!r}: {error}")
            return default

    def delay(name: str) -> timedelta:
        return read(name, lambda text: _delay(text, f"{seed}/{name}"), timedelta())

    return Behavior(
        api_delay=delay(names.API_DELAY),
        bootstrap_delay=delay(names.BOOTSTRAP_DELAY),
        start_delay=delay(names.START_DELAY),
        node_delay=delay(names.NODE_DELAY),
        fail=read(names.FAIL, _reason, ""),
        never_ready=read(names.NEVER_READY, _flag, False),
        stuck_deletion=read(names.STUCK_DELETION, _flag, False),
        node_ready=read(names.NODE_READY, _node_ready, "True"),
        node_conditions=read(names.NODE_CONDITIONS, _node_conditions, {}),
        api_fault=read(names.API_FAULT, _fault, ""),
        problem="; ".join(problems),
    )


def response_delay(fault: str) -> float:
    """Return the seconds by which a fault delays each response."""
    return float(fault.removeprefix(SLOW)) if fault.startswith(SLOW) else 0.0


def _delay(text: str, seed: str) -> timedelta:
    """Parse a delay. The spread is derived from the object's UID: it differs between objects and is stable."""
    match = _DELAY.fullmatch(text)
    if match is None:
        raise ValueError("must be seconds such as 2 or 0.5, optionally with a spread such as 2±20%")
    seconds, percent = float(match[1]), int(match[2] or 0)
    if seconds > MAX_DELAY or percent > 100:
        raise ValueError("must be at most 30 days, and its spread at most 100%")
    return timedelta(seconds=seconds * (1 + percent / 100 * _signed_fraction(seed)))


def _signed_fraction(seed: str) -> float:
    return int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=4).digest(), "big") / 2**31 - 1


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("must be true or false")
    return text == "true"


def _reason(text: str) -> str:
    if not _WORD.fullmatch(text):
        raise ValueError("must be a CamelCase reason, such as QuotaExceeded")
    return text


def _node_ready(text: str) -> str:
    if text not in (*_CONDITION_STATUSES, ABSENT):
        raise ValueError("must be True, False, Unknown or Absent")
    return text


def _node_conditions(text: str) -> dict[str, str]:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict) or any(status not in _CONDITION_STATUSES for status in given.values()):
        raise ValueError('must be a JSON object of types and statuses, such as {"DiskPressure": "True"}')
    return given


def _fault(text: str) -> str:
    if text in ("", REFUSE, HANG):
        return text
    try:
        seconds = float(text.removeprefix(SLOW)) if text.startswith(SLOW) else -1.0
    except ValueError:
        seconds = -1.0
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError("must be refuse, hang, or slow= with seconds")
    return text
