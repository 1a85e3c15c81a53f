"""Optional values, and optional access to lists and maps."""

from __future__ import annotations

from typing import Any

from herder.engine.schema.cel.declarations import Library
from herder.engine.schema.cel.library.standard import index_list, index_map
from herder.engine.schema.cel.types import BOOL, INT, list_of, map_of, optional_of, param
from herder.engine.schema.cel.values import NONE, Optional, has_key, is_zero

library = Library()
_V, _K = param("V"), param("K")
_OPTIONAL = optional_of(_V)
_LIST, _MAP = list_of(_V), map_of(_K, _V)

library.function("optional.of", _V, returns=_OPTIONAL)(Optional)
library.function("optional.none", returns=_OPTIONAL)(lambda: NONE)
library.function("optional.ofNonZeroValue", _V, returns=_OPTIONAL)(
    lambda value: NONE if is_zero(value) else Optional(value)
)
library.method("value", _OPTIONAL, returns=_V)(lambda optional: optional.value)
library.method("hasValue", _OPTIONAL, returns=BOOL)(lambda optional: optional.present)


@library.method("first", _LIST, returns=_OPTIONAL)
def first(items: list[Any]) -> Optional:
    return Optional(items[0]) if items else NONE


@library.method("last", _LIST, returns=_OPTIONAL)
def last(items: list[Any]) -> Optional:
    return Optional(items[-1]) if items else NONE


@library.method("unwrapOpt", list_of(_OPTIONAL), returns=_LIST, linear=True)
@library.function("optional.unwrap", list_of(_OPTIONAL), returns=_LIST, linear=True)
def unwrap(items: list[Any]) -> list[Any]:
    return [item.value for item in items if item.present]


@library.function("_[?_]", _LIST, INT, returns=_OPTIONAL)
def optional_item(items: list[Any], index: int) -> Optional:
    return Optional(items[index]) if 0 <= index < len(items) else NONE


@library.function("_[?_]", _MAP, _K, returns=_OPTIONAL)
def optional_entry(mapping: dict[Any, Any], key: Any) -> Optional:
    return Optional(mapping[key]) if has_key(mapping, key) else NONE


@library.function("_[?_]", optional_of(_LIST), INT, returns=_OPTIONAL)
@library.function("_[?_]", optional_of(_MAP), _K, returns=_OPTIONAL)
def optional_within(container: Optional, key: Any) -> Optional:
    if not container.present:
        return NONE
    inner = container.value
    found = optional_item(inner, key) if isinstance(inner, list) else optional_entry(inner, key)
    assert isinstance(found, Optional)
    return found


@library.function("_[_]", optional_of(_LIST), INT, returns=_OPTIONAL)
@library.function("_[_]", optional_of(_MAP), _K, returns=_OPTIONAL)
def index_within(container: Optional, key: Any) -> Optional:
    if not container.present:
        return NONE
    inner = container.value
    return Optional(index_list(inner, key) if isinstance(inner, list) else index_map(inner, key))


def _declared_only(*_: Any) -> Any:
    raise NotImplementedError("evaluated by the planner, because the alternative must not be looked at in vain")


library.method("or", _OPTIONAL, _OPTIONAL, returns=_OPTIONAL)(_declared_only)
library.method("orValue", _OPTIONAL, _V, returns=_V)(_declared_only)
