"""The built-in printers by kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from herder.engine.apiserver.resources import Column
from herder.engine.meta.kinds import GroupKind, Object

Row = Callable[[Object, datetime], list[Any]]


class Printer(NamedTuple):
    columns: Sequence[Column]
    row: Row


def printer_for(kind: GroupKind) -> Printer | None:
    return None
