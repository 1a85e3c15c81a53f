"""Names of snapshots: NAME-NODE-UNIXSECONDS, as k3s has them, with .gz if they are compressed."""

from __future__ import annotations

import re

from herder.snapshots.errors import SnapshotError

ON_DEMAND = "on-demand"
COMPRESSED = ".gz"
PARTIAL = ".part"

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,200}[A-Za-z0-9])?")
_SNAPSHOT = re.compile(r".+-[0-9]{9,10}(?:\.gz)?")
EARLIEST = 10**8
"""Earliest time in a name: names have at least nine digits, even if the clock of the machine was never set."""
MAX_AHEAD = 300
"""Seconds by which the time in a name may be ahead of the clock. Later ones come from a clock that was wrong, or from
others who can write to the bucket, and must not displace other snapshots."""


def check_name(field: str, name: str) -> str:
    if not _NAME.fullmatch(name) or ".." in name or name.endswith(PARTIAL):
        raise SnapshotError(f"{field}: {name[:80]!r} must consist of letters, digits and . _ -")
    return name


def is_snapshot(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and _SNAPSHOT.fullmatch(name) is not None


def is_compressed(name: str) -> bool:
    return name.endswith(COMPRESSED)


def seconds_of(name: str) -> int:
    """Return the time in the name of a snapshot."""
    return int(name[: -len(COMPRESSED)].rpartition("-")[2] if is_compressed(name) else name.rpartition("-")[2])


def is_ahead(name: str, now: float) -> bool:
    """Return whether the time in the name of a snapshot is in the future."""
    return seconds_of(name) > now + MAX_AHEAD


def series(name: str, node: str) -> re.Pattern[str]:
    """Match the snapshots to which one retention applies: those of one node with the same NAME."""
    return re.compile(rf"{re.escape(name)}-{re.escape(node)}-[0-9]{{9,10}}(?:\.gz)?")
