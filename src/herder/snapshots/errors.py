"""The error that ends an operation; its message is for users."""

from __future__ import annotations

import errno

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class SnapshotError(Exception):
    """`<object or field>: <what is wrong>; <what to do>`, on one line and without secrets."""


class TooLarge(SnapshotError):
    """An answer exceeds its limit."""


class NotFound(SnapshotError):
    """The snapshot does not exist."""


def describe(error: OSError) -> str:
    """Return the cause of a failed file operation."""
    place = f"{error.filename}: " if error.filename else ""
    if error.errno in _FULL:
        return f"{place}the disk is full ({error.strerror}); free some space and try again"
    return f"{place}{error.strerror or error}"
