"""The built-in printers by kind, loaded when the first table is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from herder.engine.apiserver.resources import Column
from herder.engine.meta.kinds import GroupKind, Object

Row = Callable[[Object, datetime], list[Any]]


class Printer(NamedTuple):
    columns: Sequence[Column]
    row: Row


Printers = Mapping[GroupKind, Printer]


def printer_for(kind: GroupKind) -> Printer | None:
    """Columns and rows of a built-in kind; None where only name and creation are shown."""
    return _printers().get(kind)


@cache
def _printers() -> dict[GroupKind, Printer]:
    from herder.engine.apiserver.tables import access, cluster, network, pods, storage, workloads

    return {
        kind: printer
        for module in (pods, workloads, network, storage, access, cluster)
        for kind, printer in module.PRINTERS.items()
    }
