"""Create flags of a node driver as data.

The same table is used by the machine CLI (which parses them), by DynamicSchemas (which are generated from them) and by
Jobs (whose arguments are built from fields of the schemas).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

Value = str | int | bool | tuple[str, ...]


class FlagType(StrEnum):
    STRING = "string"
    INT = "int"
    BOOL = "bool"
    LIST = "list"  # may be repeated


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag; `name` is the full name without dashes, such as `amazonec2-region`."""

    name: str
    usage: str = ""
    type: FlagType = FlagType.STRING
    default: Value = ""
    env: str = ""

    @property
    def empty(self) -> Value:
        """Value of a flag that is not set and has no default."""
        return _EMPTY[self.type]


_EMPTY: dict[FlagType, Value] = {FlagType.STRING: "", FlagType.INT: 0, FlagType.BOOL: False, FlagType.LIST: ()}
