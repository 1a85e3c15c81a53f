"""What the store keeps and hands out: keys, records, changes and events.

Records and events are shared by every reader and every watch, so nobody may change them; the one free slot,
`memo`, is for what their owner derives from the value (labels, a rendering), so that it is derived once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

Encode = Callable[[int], bytes]
"""Makes the value to store, given the revision that it will carry inside."""


class Key(NamedTuple):
    """Where an object lives. `resource` is `str(GroupResource)`; `namespace` is empty for cluster-scoped ones."""

    resource: str
    namespace: str
    name: str

    @property
    def path(self) -> str:
        """What lists are ordered by: the order of etcd's keys, in which namespace `a-b` comes before `a`."""
        return f"{self.namespace}/{self.name}"

    def __str__(self) -> str:
        return f"{self.resource} {self.namespace}/{self.name}" if self.namespace else f"{self.resource} {self.name}"


class Record(msgspec.Struct, eq=False, gc=False):
    """One state of one object. `created` is the revision at which this life of the key began.

    Not tracked by the cycle collector (there may be a hundred thousand of them), so a memo must not refer back.
    """

    key: Key
    revision: int
    created: int
    value: bytes
    memo: Any = None

    def __repr__(self) -> str:
        """Without the value, which may be secret and would end up in logs."""
        return f"Record({self.key} at {self.revision})"


class Event(msgspec.Struct, eq=False, gc=False):
    """One committed change. For a deletion `record` is the final state, carrying the deletion's revision."""

    revision: int
    record: Record
    previous: Record | None
    deleted: bool
    memo: Any = None

    def __repr__(self) -> str:
        what = "deleted" if self.deleted else "created" if self.previous is None else "updated"
        return f"Event({self.record.key} {what} at {self.revision})"


class Put(NamedTuple):
    """Create or replace. `expected`: 0 must not exist, None whatever is there, n must be at revision n."""

    key: Key
    encode: Encode
    expected: int | None = None


class Delete(NamedTuple):
    """Remove. `encode` makes the final state with the deletion's revision, as DELETED events carry it."""

    key: Key
    encode: Encode
    expected: int | None = None


Change = Put | Delete
