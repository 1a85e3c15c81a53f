"""Render a list or a single object as a meta.k8s.io/v1 Table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from herder.engine.apiserver.registry.resources import Column, Resource
from herder.engine.apiserver.tables.duration import age, human_duration, parse_time
from herder.engine.apiserver.tables.jsonpath import JsonPath, JsonPathError, compile_path
from herder.engine.apiserver.tables.printers import Row, printer_for
from herder.engine.meta.errors import BadRequest, show
from herder.engine.meta.kinds import Object

NAME = Column("Name", "string", "name")
_DEFAULT_COLUMNS = (NAME, Column("Created At", "date"))
_SCALE_COLUMNS = (NAME, Column("Desired", "integer"), Column("Available", "integer"), Column("Age", "string"))
_COMPLETED = {
    "Succeeded": "The pod has completed successfully.",
    "Failed": "The pod failed.",
}


def render(
    resource: Resource,
    version: str,
    objects: Sequence[Object],
    *,
    now: datetime,
    include_object: str = "Metadata",
    list_metadata: Object | None = None,
    with_columns: bool = True,
) -> Object:
    """Render objects as a Table. `include_object` is the query parameter: None, Metadata, Object or empty.

    `list_metadata` is the metadata of the objects' list; without it, the resourceVersion of a single object is used.
    All but the first event of a watch are rendered without columns.
    """
    check_include_object(include_object)
    columns, row = table_of(resource, version)
    if list_metadata is None:
        list_metadata = {"resourceVersion": objects[0]["metadata"].get("resourceVersion", "")} if objects else {}
    is_pods = resource.kind == "Pod" and not resource.group
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": list_metadata,
        "columnDefinitions": [_definition(column) for column in columns] if with_columns else None,
        "rows": [_row(obj, row(obj, now), include_object, conditions=is_pods) for obj in objects],
    }


def render_scale(scale: Object, *, now: datetime, include_object: str) -> Object:
    """Render a Scale, which has columns of its own."""
    check_include_object(include_object)
    metadata, desired, available = scale["metadata"], scale["spec"].get("replicas", 0), scale["status"]["replicas"]
    cells = [metadata["name"], desired, available, age(scale, now)]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": metadata.get("resourceVersion", "")},
        "columnDefinitions": [_definition(column) for column in _SCALE_COLUMNS],
        "rows": [_row(scale, cells, include_object, conditions=False)],
    }


def check_include_object(value: str) -> None:
    if value not in {"", "None", "Metadata", "Object"}:
        raise BadRequest(
            f"Unable to convert to Table as requested: includeObject: Invalid value: {show(value)}: "
            "must be 'Metadata', 'Object', 'None', or empty"
        )


def table_of(resource: Resource, version: str) -> tuple[Sequence[Column], Row]:
    """Return columns and row function of one version of a resource."""
    served = resource.versions[version]
    if served.row is not None:
        return served.columns, served.row
    if resource.custom:
        return (NAME, *served.columns), _json_path_row(served.columns)
    printer = printer_for(resource.group_kind)
    return printer or (_DEFAULT_COLUMNS, _name_and_creation)


def _definition(column: Column) -> Object:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    }


def _row(obj: Object, cells: list[Any], include_object: str, *, conditions: bool) -> Object:
    row: Object = {"cells": cells}
    if conditions:
        phase = (obj.get("status") or {}).get("phase", "")
        if phase in _COMPLETED:
            status = {"type": "Completed", "status": "True", "reason": phase, "message": _COMPLETED[phase]}
            row["conditions"] = [status]
    match include_object:
        case "None":
            row["object"] = None
        case "Object":
            row["object"] = obj
        case _:
            row["object"] = {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": obj.get("metadata") or {},
            }
    return row


def _name_and_creation(obj: Object, now: datetime) -> list[Any]:
    metadata = obj.get("metadata") or {}
    return [metadata.get("name", ""), metadata.get("creationTimestamp") or "0001-01-01T00:00:00Z"]


# --- custom columns ----------------------------------------------------------------------------------------------


def _json_path_row(columns: Sequence[Column]) -> Row:
    try:
        cells = [_cell(column, compile_path(column.json_path)) for column in columns]
    except JsonPathError:
        # kube-apiserver shows only names if one of the columns is malformed.
        cells = []

    def row(obj: Object, now: datetime) -> list[Any]:
        return [(obj.get("metadata") or {}).get("name", ""), *(cell(obj, now) for cell in cells)]

    return row


def _cell(column: Column, path: JsonPath) -> Callable[[Object, datetime], Any]:
    convert = _CONVERSIONS[column.type]

    def cell(obj: Object, now: datetime) -> Any:
        found = path.find(obj)
        return convert(found[0], now) if found else None

    return cell


def _as_string(value: Any, now: datetime) -> Any:
    if value is None:
        return None
    if isinstance(value, dict | list):
        return msgspec.json.encode(value, order="sorted").decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else _number_text(value)


def _number_text(value: float) -> str:
    text = repr(value)
    return text.removesuffix(".0")


def _as_integer(value: Any, now: datetime) -> Any:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _as_number(value: Any, now: datetime) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if float(value).is_integer() else value


def _as_boolean(value: Any, now: datetime) -> Any:
    return value if isinstance(value, bool) else None


def _as_date(value: Any, now: datetime) -> Any:
    if not isinstance(value, str):
        return None
    if not value:
        return "<unknown>"
    moment = parse_time(value)
    return human_duration((now - moment).total_seconds()) if moment else "<invalid>"


_CONVERSIONS: dict[str, Callable[[Any, datetime], Any]] = {
    "string": _as_string,
    "integer": _as_integer,
    "number": _as_number,
    "boolean": _as_boolean,
    "date": _as_date,
}
