"""Validate one version of a CustomResourceDefinition, except its schema: columns, subresources, selectable fields."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from herder.engine.meta.errors import FieldError, duplicate, invalid_value, required, too_many
from herder.engine.meta.kinds import Object

_COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")
_COLUMN_FORMATS = ("byte", "date", "date-time", "double", "float", "int32", "int64", "password")
_MAX_SELECTABLE_FIELDS = 8
_TOKENS = re.compile(r"'(?:[^'\\]|\\.)*'|[.\[\]]|[^.\[\]]+")


def check_deprecation(version: Object, path: str) -> Iterator[FieldError]:
    """Validate deprecationWarning."""
    warning = version.get("deprecationWarning")
    if warning is None:
        return
    problems = []
    if not version.get("deprecated"):
        problems.append("can only be set for deprecated versions")
    else:
        if len(warning.encode()) > 256:
            problems.append("must be <= 256 characters long")
        if not warning:
            problems.append("must not be an empty string")
        unprintable = next((place for place, letter in enumerate(warning) if not letter.isprintable()), None)
        if unprintable is not None:
            problems.append(
                "must only contain printable UTF-8 characters; non-printable character found at index "
                f"{len(warning[:unprintable].encode())}"
            )
    for problem in problems:
        yield invalid_value(f"{path}.deprecationWarning", warning, problem)


def check_columns(columns: Sequence[Object], path: str) -> Iterator[FieldError]:
    """Validate additionalPrinterColumns."""
    for index, column in enumerate(columns):
        at = f"{path}[{index}]"
        if not column.get("name"):
            yield required(f"{at}.name")
        kind, shape = column.get("type") or "", column.get("format") or ""
        if not kind:
            yield required(f"{at}.type", f"must be one of {','.join(_COLUMN_TYPES)}")
        elif kind not in _COLUMN_TYPES:
            yield invalid_value(f"{at}.type", kind, f"must be one of {','.join(_COLUMN_TYPES)}")
        if shape and shape not in _COLUMN_FORMATS:
            yield invalid_value(f"{at}.format", shape, f"must be one of {','.join(_COLUMN_FORMATS)}")
        if not column.get("jsonPath"):
            yield required(f"{at}.JSONPath")
        else:
            yield from _check_simple_path(column["jsonPath"], f"{at}.JSONPath")


def check_subresources(subresources: Object | None, path: str) -> Iterator[FieldError]:
    """Validate the paths of the scale subresource."""
    scale = (subresources or {}).get("scale")
    if scale is None:
        return
    for field, root in (("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")):
        value, at = scale.get(field) or "", f"{path}.scale.{field}"
        if not value:
            yield required(at)
            continue
        problems = list(_check_simple_path(value, at))
        yield from problems
        if not problems and not value.startswith(root):
            yield invalid_value(at, value, f"should be a json path under {root[:-1]}")
    selector, at = scale.get("labelSelectorPath") or "", f"{path}.scale.labelSelectorPath"
    if selector:
        problems = list(_check_simple_path(selector, at))
        yield from problems
        if not problems and not selector.startswith((".spec.", ".status.")):
            yield invalid_value(at, selector, "should be a json path under either .spec or .status")


def check_selectable(fields: Sequence[Object], schema: Object | None, path: str) -> Iterator[FieldError]:
    """Validate selectableFields."""
    if schema is None:
        yield invalid_value(path, "", "may only be set when `version.schema.openAPIV3Schema` is not included")
        return
    seen: set[str] = set()
    for index, field in enumerate(fields):
        at, json_path = f"{path}[{index}].jsonPath", field.get("jsonPath") or ""
        if not json_path:
            yield required(at)
            continue
        try:
            steps, found = resolve_path(json_path, schema, arrays=False)
        except InvalidPath as problem:
            yield invalid_value(at, json_path, f"is an invalid path: {problem}")
            continue
        if steps[:1] == ["metadata"]:
            yield invalid_value(at, json_path, "must not point to fields in metadata")
        if found.get("type") not in {"string", "boolean", "integer"}:
            yield invalid_value(
                at,
                json_path,
                "must point to a field of type string, boolean or integer. Enum string fields and strings with "
                "formats are allowed.",
            )
        if ".".join(steps) in seen:
            yield duplicate(at, json_path)
        seen.add(".".join(steps))
    if len(seen) > _MAX_SELECTABLE_FIELDS:
        yield too_many(path, len(seen), _MAX_SELECTABLE_FIELDS)


def _check_simple_path(value: str, path: str) -> Iterator[FieldError]:
    if not value.startswith("."):
        yield invalid_value(path, value, "must be a simple json path starting with .")


# --- field paths -------------------------------------------------------------------------------------------------


class InvalidPath(Exception):
    """A JSON path is malformed or does not match the schema."""


def resolve_path(json_path: str, schema: Object, *, arrays: bool = True) -> tuple[list[str], Object]:
    """Return the steps of a field path, and the schema it leads to. Steps are `.name`, or `['name']` with `arrays`."""
    tokens = iter(_TOKENS.findall(json_path))
    steps: list[str] = []
    for token in tokens:
        if token == "[":
            if not arrays:
                raise InvalidPath("array notation is not allowed")
            name = next(tokens, "")
            if not name:
                raise InvalidPath("unexpected end of JSON path")
            if len(name) < 2 or name[0] != "'" or name[-1] != "'":
                raise InvalidPath(f"expected single quoted string but got {name}")
            schema = _step(schema, name[1:-1].replace("\\'", "'"))
            steps.append(name[1:-1])
            closing = next(tokens, "")
            if closing != "]":
                raise InvalidPath(f"expected ] but got {closing}" if closing else "unexpected end of JSON path")
        elif token == ".":
            name = next(tokens, "")
            if not name:
                raise InvalidPath("unexpected end of JSON path")
            schema = _step(schema, name)
            steps.append(name)
        else:
            raise InvalidPath(f"expected [ or . but got: {token}")
    return steps, schema


def _step(schema: Object, name: str) -> Object:
    properties, additional = schema.get("properties"), schema.get("additionalProperties")
    found = properties.get(name) if properties else additional
    if not isinstance(found, dict):
        raise InvalidPath("does not refer to a valid field")
    return found
