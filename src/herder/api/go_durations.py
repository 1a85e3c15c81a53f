"""Parse Go durations as whole seconds, the unit of Cluster API timeouts."""

from __future__ import annotations

import re

MAX_SECONDS = 2**31 - 1

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)")


def whole_seconds(text: str) -> int:
    """Return the seconds, rounded down and clamped to int32; the schema has validated the format."""
    return int(min(sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text)), MAX_SECONDS))
