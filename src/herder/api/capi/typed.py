"""Read values of workload cluster objects, whose API server may be compromised and return any JSON.

Reconcilers rely on the types of Kubernetes objects, so projections are built from what these functions return.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from herder.api.capi.conditions import timestamp
from herder.api.times import parse_time
from herder.engine.meta.kinds import Object
from herder.engine.meta.printable import printable

_MAX_LENGTH = 1024  # of any string except label and annotation values
_MAX_ITEMS = 1000  # of any list


def text(value: object) -> str:
    """Return a string without control characters: it ends up in conditions, which users read in terminals."""
    return printable(value, _MAX_LENGTH) if isinstance(value, str) else ""


def texts(names: Iterable[str], part: Object) -> Object:
    """Return the strings that are set."""
    return {name: found for name in names if (found := text(part.get(name)))}


def mapping(value: object) -> Object:
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> list[Object]:
    return [each for each in value[:_MAX_ITEMS] if isinstance(each, dict)] if isinstance(value, list) else []


def string_map(value: object) -> Object:
    return {key: found for key, found in mapping(value).items() if isinstance(found, str)}


def time(value: object) -> str:
    """Return a time in Kubernetes' format, since it is copied into conditions; empty if it is invalid."""
    found = parse_time(value) if isinstance(value, str) else None
    return timestamp(found) if found is not None else ""


def filled(**parts: Any) -> Object:
    return {name: part for name, part in parts.items() if part}
