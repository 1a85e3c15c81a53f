"""Data types of the store: keys, records, changes and events.

Every reader and every watch shares the same records and events, so they are immutable by convention. The one writable
slot is `memo`: their owner caches there what it derives from the value (labels, an encoded form).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

Encode = Callable[[int], bytes]
"""Encodes the value to store, given the revision that it carries in its resourceVersion."""


class Key(NamedTuple):
    """Key of an object. `resource` is `str(GroupResource)`; `namespace` is empty for cluster-scoped objects."""

    resource: str
    namespace: str
    name: str

    @property
    def path(self) -> str:
        """Sort key of lists: the order of etcd keys, in which namespace `a-b` sorts before `a`."""
        return f"{self.namespace}/{self.name}"

    def __str__(self) -> str:
        return f"{self.resource} {self.namespace}/{self.name}" if self.namespace else f"{self.resource} {self.name}"


class Record(msgspec.Struct, eq=False, gc=False):
    """One revision of one object. `created` is the revision that created the object (its mod revision is
    `revision`).

    Records are not tracked by the cycle collector, because there may be a hundred thousand of them: `memo` must not
    refer back to its record.
    """

    key: Key
    revision: int
    created: int
    value: bytes
    memo: Any = None

    def __repr__(self) -> str:
        """Omit the value: it may be secret and would end up in logs."""
        return f"Record({self.key} at {self.revision})"


class Event(msgspec.Struct, eq=False, gc=False):
    """One committed change. The `record` of a deletion is the final state, with the revision of the deletion."""

    revision: int
    record: Record
    previous: Record | None
    deleted: bool
    memo: Any = None

    def __repr__(self) -> str:
        what = "deleted" if self.deleted else "created" if self.previous is None else "updated"
        return f"Event({self.record.key} {what} at {self.revision})"


class Put(NamedTuple):
    """Create or replace an object.

    `expected` is the precondition: 0 requires that the object does not exist, n that it is at revision n, None nothing.
    """

    key: Key
    encode: Encode
    expected: int | None = None


class Delete(NamedTuple):
    """Delete an object. `encode` returns the final state with the revision of the deletion, as DELETED events carry
    it."""

    key: Key
    encode: Encode
    expected: int | None = None


class Restored(NamedTuple):
    """A replacement of the database by an older one. The revision identifies it: later ones have higher revisions."""

    revision: int
    backup_at: float | None  # Unix time; None if it was restored by a version that did not record it


Change = Put | Delete
