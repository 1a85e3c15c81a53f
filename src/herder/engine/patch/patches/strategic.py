"""Strategic merge patch: a merge patch that merges lists by key according to the type.

Only built-in kinds support it. Directives in the patch (`$patch`, `$retainKeys`, `$deleteFromPrimitiveList/…`,
`$setElementOrder/…`) control what merging alone cannot express; `strategic_order` implements the last one.
"""

from __future__ import annotations

from typing import Any

from herder.engine.patch.depth import refuse_too_deep
from herder.engine.patch.goformat import plain
from herder.engine.patch.patches import strategic_order as order
from herder.engine.patch.patches.json_patch import copy_json, json_kind
from herder.engine.patch.patches.schema import PatchSchema, Strategy
from herder.engine.patch.patches.strategic_errors import (
    BAD_PRIMITIVE_LIST,
    BAD_RETAIN_KEYS,
    BAD_SET_ELEMENT_ORDER,
    StrategicPatchError,
    failed,
    go_kind,
)

__all__ = ["PatchSchema", "StrategicPatchError", "apply_strategic_patch"]

DIRECTIVE = "$patch"
RETAIN_KEYS = "$retainKeys"
DELETE_PRIMITIVES = "$deleteFromPrimitiveList"
SET_ORDER = "$setElementOrder"


@refuse_too_deep
def apply_strategic_patch(doc: dict[str, Any], patch: Any, schema: PatchSchema) -> dict[str, Any]:
    """Return the document with the patch merged; the arguments are not modified. Raises the server's StatusError."""
    if patch is None:
        patch = {}
    if not isinstance(patch, dict):
        target = "Go value of type map[string]interface {}"
        raise StrategicPatchError(f"json: cannot unmarshal {json_kind(patch)} into {target}")
    return _merge_map(copy_json(doc), copy_json(patch), schema)


def _merge_map(original: dict[str, Any], patch: dict[str, Any], schema: PatchSchema) -> dict[str, Any]:
    """Merge a map. Both arguments are consumed."""
    if DIRECTIVE in patch:
        return _apply_map_directive(patch)
    _apply_retain_keys(original, patch)
    _apply_set_orders(original, patch, schema)
    for key, value in patch.items():
        deletes = key.startswith(DELETE_PRIMITIVES)
        if deletes:
            key = _after_prefix(key, DELETE_PRIMITIVES)
        if value is None:
            original.pop(key, None)
            continue
        current = original.get(key)
        if isinstance(current, dict) and isinstance(value, dict):
            field, strategy = schema.struct_field(key)
            original[key] = value if strategy.replaces else _merge_map(current, value, field)
        elif isinstance(current, list) and isinstance(value, list):
            element, strategy = schema.list_field(key)
            original[key] = _merge_list_field(current, value, element, strategy, deletes)
        elif not deletes:
            _set_value(original, key, value)
    return original


def _apply_map_directive(patch: dict[str, Any]) -> dict[str, Any]:
    directive = patch[DIRECTIVE]
    if directive == "replace":
        del patch[DIRECTIVE]
        return patch
    if directive == "delete":
        return {}
    raise failed(f"unknown patch type: {plain(directive)} in map: {plain(patch)}")


def _set_value(original: dict[str, Any], key: str, value: Any) -> None:
    """Set a value that has no counterpart to merge with, without nulls and directives."""
    kept, value = _without_directives(_without_nulls(value))
    if kept:
        original[key] = value
    else:
        original.pop(key, None)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _without_directives(value: Any) -> tuple[bool, Any]:
    """Return whether to keep the value at all, and the value without directives."""
    if isinstance(value, dict):
        if DIRECTIVE in value:
            return False, None
        pairs = ((key, *_without_directives(item)) for key, item in value.items())
        return True, {key: item for key, kept, item in pairs if kept}
    if isinstance(value, list):
        return True, [item for kept, item in map(_without_directives, value) if kept]
    return True, value


def _apply_retain_keys(original: dict[str, Any], patch: dict[str, Any]) -> None:
    if RETAIN_KEYS not in patch:
        return
    retained = patch.pop(RETAIN_KEYS)
    if not isinstance(retained, list):
        raise StrategicPatchError(BAD_RETAIN_KEYS)
    for key, value in patch.items():
        parallel = key.startswith((DELETE_PRIMITIVES, SET_ORDER))
        if value is not None and not parallel and key not in retained:
            raise StrategicPatchError(BAD_RETAIN_KEYS)
    for key in [key for key in original if key not in retained]:
        del original[key]


def _apply_set_orders(original: dict[str, Any], patch: dict[str, Any], schema: PatchSchema) -> None:
    """Merge each list that has a $setElementOrder directive, and remove it from the patch."""
    for directive in [key for key in patch if key.startswith(SET_ORDER)]:
        wanted = patch.pop(directive)
        if not isinstance(wanted, list):
            raise failed(f"expected a []interface {{}}, but received a {go_kind(wanted)}")
        key = _after_prefix(directive, SET_ORDER)
        ours, theirs = original.get(key), patch.get(key)
        for found, holder in ((ours, original), (theirs, patch)):
            if key in holder and not isinstance(found, list):
                raise failed(f"expected a []interface {{}}, but received a {go_kind(found)}")
        element, strategy = schema.list_field(key)
        order.check_order(theirs or [], wanted, strategy.merge_key)
        if ours is None and theirs is None:
            continue
        if theirs is None:
            merged: list[Any] = ours or []
        elif ours is None:
            merged = _without_directives(theirs)[1]
        else:
            merged = _merge_list_field(list(ours), theirs, element, strategy, deletes=False)
        is_map_list = order.are_maps(ours or [], theirs or [])
        original[key] = order.order_items(merged, wanted, ours or [], strategy.merge_key, is_map_list)
        patch.pop(key, None)


def _after_prefix(key: str, prefix: str) -> str:
    found, slash, name = key.partition("/")
    if found != prefix or not slash:
        raise StrategicPatchError(BAD_PRIMITIVE_LIST if prefix == DELETE_PRIMITIVES else BAD_SET_ELEMENT_ORDER)
    return name


def _merge_list_field(
    original: list[Any], patch: list[Any], element: PatchSchema, strategy: Strategy, deletes: bool
) -> list[Any]:
    if not strategy.merges and not deletes:
        return patch
    if not original and not patch:
        return original
    is_map_list = order.are_maps(original, patch)
    if not is_map_list:
        if deletes:
            return [item for item in original if item not in patch]
        merged = list(dict.fromkeys(original + patch))
        return order.order_items(merged, patch, original, "", is_map_list)
    if not strategy.merge_key:
        raise failed(f"cannot merge lists without merge key for {element.kind_name()}")
    original, patch = _apply_item_directives(original, patch, strategy.merge_key)
    before = list(original)
    merged = _merge_items(original, patch, strategy.merge_key, element)
    return order.order_items(merged, patch, before, strategy.merge_key, is_map_list)


def _apply_item_directives(original: list[Any], patch: list[Any], key: str) -> tuple[list[Any], list[Any]]:
    plain_items: list[Any] = []
    replaces = False
    for item in patch:
        if DIRECTIVE not in item:
            plain_items.append(item)
            continue
        directive = item[DIRECTIVE]
        if directive == "delete":
            if key not in item:
                raise order.no_merge_key(item, key)
            original = [one for one in original if key not in one or one[key] != item[key]]
        elif directive == "replace":
            replaces = True
        elif directive == "merge":
            raise failed("merging lists cannot yet be specified in the patch")
        else:
            raise failed(f"unknown patch type: {plain(directive)} in map: {plain(item)}")
    return (plain_items, []) if replaces else (original, plain_items)


def _merge_items(original: list[Any], patch: list[Any], key: str, element: PatchSchema) -> list[Any]:
    merged = list(original)
    for item in patch:
        if key not in item:
            raise order.no_merge_key(item, key)
        for position, one in enumerate(merged):
            if key in one and one[key] == item[key]:
                merged[position] = _merge_map(one, item, element)
                break
        else:
            merged.append(item)
    return merged
