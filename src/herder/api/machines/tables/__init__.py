"""Create flags of the drivers of rancher-machine, as the program lists them."""

from __future__ import annotations

from functools import cache

import msgspec

from herder.api.machines.drivers.flags import Flag, FlagType
from herder.api.machines.tables.flags import FLAGS


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A flag without its help text."""

    name: str
    type: FlagType = FlagType.STRING
    default: str | int | bool | tuple[str, ...] | None = None
    env: str = ""

    def flag(self) -> Flag:
        return Flag(self.name, type=self.type, env=self.env, default=self.value)

    @property
    def value(self) -> str | int | bool | tuple[str, ...]:
        return Flag("", type=self.type).empty if self.default is None else self.default


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: str  # of rancher-machine
    drivers: dict[str, tuple[Row, ...]]


@cache
def table() -> Table:
    return msgspec.json.decode(FLAGS, type=Table)


def table_flags(driver: str) -> tuple[Flag, ...] | None:
    """Return the flags of a driver; None if rancher-machine does not have it."""
    rows = table().drivers.get(driver)
    return tuple(row.flag() for row in rows) if rows is not None else None
