"""Cells and columns that several printers share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from herder.engine.apiserver.registry.resources import Column
from herder.engine.meta.kinds import Object
from herder.engine.meta.selectors import SelectorError, label_selector_from_object

NONE = "<none>"
UNSET = "<unset>"
UNKNOWN = "<unknown>"


def columns(*declared: str) -> tuple[Column, ...]:
    """Parse column declarations: `Name`, `Age`, `Ready:integer`; `+` marks columns of `-o wide`. Names have format
    `name`."""
    parsed = []
    for text in declared:
        name, _, kind = text.removeprefix("+").partition(":")
        is_name = name == "Name" or kind == "name"
        parsed.append(
            Column(
                name,
                "string" if is_name else kind or "string",
                format="name" if is_name else "",
                priority=1 if text[0] == "+" else 0,
            )
        )
    return tuple(parsed)


def name_of(obj: Object) -> str:
    return str(obj["metadata"].get("name", ""))


def spec_of(obj: Object) -> Object:
    return obj.get("spec") or {}


def status_of(obj: Object) -> Object:
    return obj.get("status") or {}


def count(obj: Object, field: str) -> int:
    return int(obj.get(field) or 0)


def annotation(obj: Object, key: str) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(key, ""))


def container_cells(containers: Sequence[Object] | None) -> list[str]:
    """Return the names and images of containers."""
    listed = containers or ()
    return [",".join(each.get("name", "") for each in listed), ",".join(each.get("image", "") for each in listed)]


def template_cells(spec: Object) -> list[str]:
    return container_cells(((spec.get("template") or {}).get("spec") or {}).get("containers"))


def labels_text(labels: Object | None) -> str:
    return ",".join(sorted(f"{key}={value}" for key, value in (labels or {}).items())) or NONE


def selector_text(selector: Object | None, *, empty: str = NONE) -> str:
    """Format a LabelSelector in the syntax of `-l`. An absent one selects nothing, but is shown like an empty one."""
    try:
        parsed = label_selector_from_object(selector)
    except (SelectorError, KeyError):
        return "<error>"
    return (str(parsed) if parsed is not None else "") or empty


def condition(conditions: Iterable[Object] | None, kind: str) -> Object | None:
    return next((each for each in conditions or () if each.get("type") == kind), None)


def has_condition(conditions: Iterable[Object] | None, kind: str) -> bool:
    found = condition(conditions, kind)
    return found is not None and found.get("status") == "True"


def join_limited(listed: Sequence[Any], *, limit: int = 3, empty: str = UNSET, separator: str = ",") -> str:
    text = separator.join(str(each) for each in listed[:limit])
    if len(listed) > limit:
        return f"{text} + {len(listed) - limit} more..."
    return text or empty
