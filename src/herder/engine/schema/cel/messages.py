"""Message types of mutating policies: objects (`Object{…}`), parts (`Object.spec{…}`), operations (`JSONPatch{…}`)."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, Final

from herder.engine.schema.cel.errors import EvaluationError
from herder.engine.schema.cel.times import format_duration, format_timestamp
from herder.engine.schema.cel.types import DYN, STRING, Field, ObjectType
from herder.engine.schema.cel.values import Duration, Timestamp, Uint, type_name

OBJECT: Final = "Object"
JSON_PATCH: Final = ObjectType(
    "JSONPatch", {name: Field(name, DYN if name == "value" else STRING) for name in ("op", "path", "from", "value")}
)


class Message(dict[str, Any]):
    """A map with the name of its message type."""

    __slots__ = ("cel_type",)

    def __init__(self, cel_type: str, fields: dict[str, Any]) -> None:
        super().__init__(fields)
        self.cel_type = cel_type


class PartType(ObjectType):
    """The object or a part of it by path, without a schema: any field can be set to anything."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        super().__init__(name, {})

    def find(self, name: str) -> Field | None:
        return Field(name, DYN)


def message_type(name: str) -> ObjectType | None:
    if name == JSON_PATCH.name:
        return JSON_PATCH
    return PartType(name) if name == OBJECT or name.startswith(f"{OBJECT}.") else None


def misnamed_parts(value: Any, path: str) -> Iterator[str]:
    """Yield errors for parts at another place than their type name says."""
    if isinstance(value, Message):
        if value.cel_type != path:
            message = "which matches field name path from root Object type"
            yield f'unexpected type name "{value.cel_type}", expected "{path}", {message}'
        for name, inner in value.items():
            yield from misnamed_parts(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for item in value:
            yield from misnamed_parts(item, path)
    elif isinstance(value, dict):
        for item in value.values():
            yield from misnamed_parts(item, path)


def as_json(value: Any) -> Any:
    """Return the value as JSON."""
    match value:
        case None | bool() | str() | float():
            return value
        case Uint() | int():
            return int(value)
        case bytes():
            return base64.b64encode(value).decode()
        case list():
            return [as_json(item) for item in value]
        case dict():
            return {str(key): as_json(item) for key, item in value.items()}
        case Timestamp():
            return format_timestamp(value)
        case Duration():
            return format_duration(value)
    raise EvaluationError(f"a value of type {type_name(value)} has no form in JSON")
