"""A driver's create flags: what it can be told about a machine, as data.

One table serves the machine CLI (which parses them), the DynamicSchemas (which are made of them) and the Jobs (whose
arguments are made of the fields that the schemas describe).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

Value = str | int | bool | tuple[str, ...]


class FlagType(StrEnum):
    STRING = "string"
    INT = "int"
    BOOL = "bool"
    LIST = "list"  # given several times


@dataclass(frozen=True, slots=True)
class Flag:
    """`name` is the whole word after the dashes, `amazonec2-region`."""

    name: str
    usage: str = ""
    type: FlagType = FlagType.STRING
    default: Value = ""
    env: str = ""

    @property
    def empty(self) -> Value:
        """What it is when nobody says anything and it has no default."""
        return _EMPTY[self.type]


_EMPTY: dict[FlagType, Value] = {FlagType.STRING: "", FlagType.INT: 0, FlagType.BOOL: False, FlagType.LIST: ()}
