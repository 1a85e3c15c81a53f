"""Durations as Go writes them, in the whole seconds that Cluster API counts."""

from __future__ import annotations

import re

LONGEST = 2**31 - 1

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)")


def whole_seconds(text: str) -> int:
    """Rounded down; what is longer than can be counted is as long as can be. The schema has checked the form."""
    return int(min(sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text)), LONGEST))
