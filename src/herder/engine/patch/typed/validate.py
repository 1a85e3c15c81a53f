"""Validate a value against its type, with the messages of structured-merge-diff."""

from __future__ import annotations

from typing import Any

from herder.engine.patch.fieldpath.path_element import describe
from herder.engine.patch.goformat import literal, plain, type_name
from herder.engine.patch.typed.list_items import ItemError, TypedError, element_of
from herder.engine.patch.typed.types import MAP, Atom, ListType, MapType, TypeRef

Errors = list[tuple[str, str]]
"""Paths and messages."""


def check(of: TypeRef, value: Any) -> None:
    """Raise a TypedError with all mismatches; duplicates in sets and list maps count."""
    errors: Errors = []
    _check(of.atom, value, errors)
    if errors:
        messages = [f"{path}: {message}" if path else message for path, message in errors]
        raise TypedError(messages[0] if len(messages) == 1 else "\n  ".join(["errors:", *messages]))


def _check(atom: Atom, value: Any, errors: Errors) -> None:
    """Collect errors with paths relative to the value; prefixes are added on the way back, so that valid values cost
    nothing."""
    kind = value.__class__
    if kind is dict and atom.map is not None:
        _check_map(atom.map, value, errors)
    elif kind is list and atom.list is not None:
        _check_list(atom.list, value, errors)
    elif kind is not str or atom.scalar != "string":
        message = _scalar_error(atom, value)
        if message:
            errors.append(("", message))


def _scalar_error(atom: Atom, value: Any) -> str:
    """Return the error of a value that is neither a matching map nor a matching list; empty if it is valid."""
    if value is None:
        return ""
    kind, scalar = value.__class__, atom.scalar
    if scalar is None or (atom.map is not None and kind is list):
        return f"expected {'map' if atom.fallback == MAP else 'list'}, got &{{{plain(value)}}}"
    if scalar == "string":
        return "" if kind is str else f"expected string, got &value.valueUnstructured{{Value:{literal(value)}}}"
    if scalar == "numeric":
        return "" if kind is int or kind is float else f"expected numeric (int or float), got {type_name(value)}"
    if scalar == "boolean":
        return "" if kind is bool else f"expected boolean, got &{{{plain(value)}}}"
    return f"expected any scalar, got &{{{plain(value)}}}" if kind is dict or kind is list else ""


def _check_map(of: MapType, value: dict[str, Any], errors: Errors) -> None:
    fields, element = of.fields, of.element
    for key, item in value.items():
        field = fields.get(key, element)
        if field is None:
            errors.append((f".{key}", "field not declared in schema"))
            return
        before = len(errors)
        _check(field.atom, item, errors)
        if len(errors) > before:
            _prefix_paths(f".{key}", errors, before)


def _prefix_paths(step: str, errors: Errors, start: int) -> None:
    errors[start:] = [(step + path, message) for path, message in errors[start:]]


def _check_list(of: ListType, value: list[Any], errors: Errors) -> None:
    seen: set[str] = set()
    inner = of.element.atom
    for position, item in enumerate(value):
        element = ""
        if of.associative:
            try:
                element = element_of(of, item)
            except ItemError as error:
                errors.append(("", f"element {position}: {error}"))
                return
            if element in seen:
                errors.append(("", f"duplicate entries for key {describe(element)}"))
            seen.add(element)
        before = len(errors)
        _check(inner, item, errors)
        if len(errors) > before:
            _prefix_paths(describe(element) if element else f"[{position}]", errors, before)
