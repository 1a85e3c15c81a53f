"""Identity of items in sets and list maps."""

from __future__ import annotations

from typing import Any

from herder.engine.patch.fieldpath.path_element import key_element, scalar_key_element, value_element
from herder.engine.patch.goformat import quoted
from herder.engine.patch.typed.types import ListType


class TypedError(Exception):
    """A value that does not match its type."""


class ItemError(TypedError):
    """An item that cannot be identified."""


def element_of(of: ListType, item: Any) -> str:
    """Return the path element of the item."""
    if not of.keys:
        return _set_element(item)
    if not isinstance(item, dict):
        what = "a null element" if item is None else "non-map elements"
        raise ItemError(f"associative list with keys may not have {what}")
    if len(of.keys) == 1:
        value = item.get(of.keys[0])
        if value.__class__ is str:
            return scalar_key_element(of.keys[0], value)
    return _key_element(of, item)


def _key_element(of: ListType, item: dict[str, Any]) -> str:
    parts: list[Any] = []
    for key in of.sorted_keys:
        value = item[key] if key in item else _default_of(of, key)
        if value is not None or key in item:
            parts += (key, value)
    if not parts:
        names = "[" + " ".join(map(quoted, of.keys)) + "]"
        raise ItemError(
            f"associative list with keys has an element that omits all key fields {names} "
            "(and doesn't have default values for any key fields)"
        )
    try:
        return scalar_key_element(*parts)
    except TypeError:  # a key field is a list or an object
        return key_element(zip(parts[::2], parts[1::2], strict=True))


def _set_element(item: Any) -> str:
    if isinstance(item, dict):
        raise ItemError("associative list without keys has an element that's a map type")
    if isinstance(item, list):
        raise ItemError("not supported: associative list with lists as elements")
    if item is None:
        raise ItemError("associative list without keys has an element that's an explicit null")
    return value_element(item)


def _default_of(of: ListType, key: str) -> Any:
    found = of.element.atom.map
    if found is None:
        raise ItemError(f"couldn't find default value for {key}: associative list may not have non-map types")
    return found.defaults.get(key)


def by_element(of: ListType, items: list[Any] | None) -> dict[str, list[Any]]:
    """Return the items by path element; several if the list has duplicates."""
    found: dict[str, list[Any]] = {}
    for position, item in enumerate(items or ()):
        try:
            element = element_of(of, item)
        except ItemError as error:
            raise TypedError(f"element {position}: {error}") from None
        duplicates = found.get(element)
        if duplicates is None:
            found[element] = [item]
        else:
            duplicates.append(item)
    return found
