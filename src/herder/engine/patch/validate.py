"""Whether a value fits its type, in the words of structured-merge-diff."""

from __future__ import annotations

from typing import Any

from herder.engine.patch.goformat import literal, plain, type_name
from herder.engine.patch.listitems import ItemError, TypedError, element_of
from herder.engine.patch.pathelement import describe
from herder.engine.patch.typed import LIST, MAP, Atom, ListType, MapType, TypeRef

Errors = list[tuple[str, str]]
"""Paths, and what is wrong there."""


def check(of: TypeRef, value: Any) -> None:
    """Raise a TypedError that tells everything that does not fit; duplicates in sets and list maps do not."""
    errors: Errors = []
    _check(of, value, "", errors)
    if errors:
        told = [f"{path}: {message}" if path else message for path, message in errors]
        raise TypedError(told[0] if len(told) == 1 else "\n  ".join(["errors:", *told]))


def _check(of: TypeRef, value: Any, path: str, errors: Errors) -> None:
    atom = of.atom
    kind = atom.kind_of(value)
    if kind == MAP:
        assert atom.map is not None
        _check_map(atom.map, value, path, errors)
    elif kind == LIST:
        assert atom.list is not None
        _check_list(atom.list, value, path, errors)
    elif value is not None:
        complaint = scalar_complaint(atom, value)
        if complaint:
            errors.append((path, complaint))


def scalar_complaint(atom: Atom, value: Any) -> str:
    scalar, kind = atom.scalar, type(value)
    if scalar == "string":
        return "" if kind is str else f"expected string, got &value.valueUnstructured{{Value:{literal(value)}}}"
    if scalar == "numeric":
        return "" if kind is int or kind is float else f"expected numeric (int or float), got {type_name(value)}"
    if scalar == "boolean":
        return "" if kind is bool else f"expected boolean, got &{{{plain(value)}}}"
    return f"expected any scalar, got &{{{plain(value)}}}" if kind is dict or kind is list else ""


def _check_map(of: MapType, value: Any, path: str, errors: Errors) -> None:
    if value is None:
        return
    if not isinstance(value, dict):
        errors.append((path, f"expected map, got &{{{plain(value)}}}"))
        return
    fields, element = of.fields, of.element
    for key, item in value.items():
        field = fields.get(key, element)
        if field is None:
            errors.append((f"{path}.{key}", "field not declared in schema"))
            return
        _check(field, item, f"{path}.{key}", errors)


def _check_list(of: ListType, value: Any, path: str, errors: Errors) -> None:
    if value is None:
        return
    if not isinstance(value, list):
        errors.append((path, f"expected list, got &{{{plain(value)}}}"))
        return
    seen: set[str] = set()
    for position, item in enumerate(value):
        step = f"[{position}]"
        if of.associative:
            try:
                element = element_of(of, item)
            except ItemError as error:
                errors.append((path, f"element {position}: {error}"))
                return
            step = describe(element)
            if element in seen:
                errors.append((path, f"duplicate entries for key {step}"))
            seen.add(element)
        _check(of.element, item, path + step, errors)
