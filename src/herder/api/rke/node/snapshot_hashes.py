"""Hashes of the snapshots on a machine, as reported by a periodic instruction of its plan.

Nodes control the report: it is bounded, and malformed lines are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MAX_HASHES = 100
"""Most files that a machine reports: the newest ones."""
_MAX_REPORT_BYTES = 64 << 10
_LINE = re.compile(r"snapshot ([0-9a-f]{64}) ([A-Za-z0-9][A-Za-z0-9._-]{0,200})")


def parse_hashes(output: bytes) -> Mapping[str, str]:
    """SHA-256 of files by their names. The output has a line for each file: hash and name."""
    lines = output[:_MAX_REPORT_BYTES].decode("ascii", errors="replace").split("\n")[:MAX_HASHES]
    matches = [match for line in lines if (match := _LINE.fullmatch(line))]
    return {match[2]: match[1] for match in matches}
