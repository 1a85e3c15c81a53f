"""Parts of objects that a workload cluster's API server answers: it may be compromised, and answer with any JSON.

Reconcilers rely on the types of Kubernetes' own objects, so records are made of what these functions return.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from herder.api.capi.conditions import timestamp
from herder.api.moments import moment
from herder.engine.meta.kinds import Object
from herder.engine.meta.printable import printable

_LONGEST = 1024  # characters of any text but a label's or an annotation's
_MOST = 1000  # entries of a list


def text(value: object) -> str:
    """Without control characters: it gets into conditions, which users read in terminals."""
    return printable(value, _LONGEST) if isinstance(value, str) else ""


def texts(names: Iterable[str], part: Object) -> Object:
    """Those that are there."""
    return {name: found for name in names if (found := text(part.get(name)))}


def mapping(value: object) -> Object:
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> list[Object]:
    return [each for each in value[:_MOST] if isinstance(each, dict)] if isinstance(value, list) else []


def string_map(value: object) -> Object:
    return {key: found for key, found in mapping(value).items() if isinstance(found, str)}


def time(value: object) -> str:
    """As Kubernetes writes it, since it is copied into conditions; empty for what is no time to count from."""
    found = moment(value) if isinstance(value, str) else None
    return timestamp(found) if found is not None else ""


def filled(**parts: Any) -> Object:
    return {name: part for name, part in parts.items() if part}
