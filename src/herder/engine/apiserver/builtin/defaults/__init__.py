"""What Go's defaulting functions fill in, kind by kind, beyond what the published schemas say."""

from __future__ import annotations

from collections.abc import Callable

from herder.engine.meta.kinds import GroupKind, GroupVersionKind, Object

_BY_KIND: dict[GroupKind, Callable[[Object], None]] = {}


def default(kind: GroupVersionKind, obj: Object) -> None:
    """Fill in the defaults of one kind, in place."""
    fill = _BY_KIND.get(kind.group_kind)
    if fill is not None:
        fill(obj)
