"""Built-in printers by kind, imported with the first Table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from herder.engine.apiserver.registry.resources import Column
from herder.engine.meta.kinds import GroupKind, Object

Row = Callable[[Object, datetime], list[Any]]


class Printer(NamedTuple):
    """Columns and row function of a kind."""

    columns: Sequence[Column]
    row: Row


Printers = Mapping[GroupKind, Printer]


def printer_for(kind: GroupKind) -> Printer | None:
    """Return the printer of a built-in kind; None if it has only the default columns."""
    return _printers().get(kind)


@cache
def _printers() -> dict[GroupKind, Printer]:
    from herder.engine.apiserver.tables import access, cluster, network, pods, storage, workloads

    return {
        kind: printer
        for module in (pods, workloads, network, storage, access, cluster)
        for kind, printer in module.PRINTERS.items()
    }
