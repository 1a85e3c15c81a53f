"""List types: uniqueness of set elements and map keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from herder.engine.meta.errors import FieldError
from herder.engine.schema.gotext import format_value, to_json
from herder.engine.schema.nodes import Node

Check = Callable[[Any, str, list[FieldError]], None]


def compile_list_types(node: Node | None) -> Check | None:
    """Return a check for duplicates in a value and below it; None if no list is a set or map."""
    if node is None:
        return None
    fields = {name: check for name, sub in node.properties.items() if (check := compile_list_types(sub))}
    others = compile_list_types(node.additional)
    item = compile_list_types(node.items)
    keyed = node.list_type == "map"
    if not (fields or others or item or keyed or node.list_type == "set"):
        return None
    keys = node.list_keys
    unique = keyed or node.list_type == "set"

    def check_value(value: Any, path: str, errors: list[FieldError]) -> None:
        if type(value) is list:
            if unique and (value if keyed else len(value) > 1):
                _check_unique(value, keys if keyed else None, path, errors)
            if item is not None:
                for index, element in enumerate(value):
                    item(element, f"{path}[{index}]", errors)
        elif type(value) is dict:
            for name, field in fields.items():
                if name in value:
                    field(value[name], f"{path}.{name}" if path else name, errors)
            if others is not None:
                for name, sub in value.items():
                    others(sub, f"{path}[{name}]", errors)

    return check_value


def _check_unique(items: list[Any], keys: tuple[str, ...] | None, path: str, errors: list[FieldError]) -> None:
    if keys is not None:
        for index, item in enumerate(items):
            if item is not None and type(item) is not dict:
                detail = "must be an object for an array of list-type map"
                body = f"Invalid value: {format_value(item)}: {detail}"
                errors.append(FieldError("FieldValueInvalid", f"{path}[{index}]", body))
                return
        if len(keys) == 1 and _surely_unique(items, keys[0]):
            return
        items = [_keys_of(item, keys) for item in items]
    seen: dict[Any, int] = {}
    for index, item in enumerate(items):
        identity = to_json(item) if isinstance(item, (dict, list)) else (type(item), item)
        seen[identity] = seen.get(identity, 0) + 1
        if seen[identity] == 2:  # report each duplicate once
            errors.append(
                FieldError("FieldValueDuplicate", f"{path}[{index}]", f"Duplicate value: {format_value(item)}")
            )


def _surely_unique(items: list[Any], key: str) -> bool:
    """Fast path: each item has a string key, and all are distinct."""
    found = {item.get(key) for item in items if item is not None and type(item.get(key)) is str}
    return len(found) == len(items)


def _keys_of(item: Any, keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: item[key] for key in keys if key in item} if item is not None else {}
