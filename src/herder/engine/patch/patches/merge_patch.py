"""JSON merge patch (RFC 7396) as kube-apiserver applies it: nulls are also removed inside lists of the patch."""

from __future__ import annotations

from typing import Any

from herder.engine.meta.errors import BadRequest
from herder.engine.patch.depth import refuse_too_deep
from herder.engine.patch.patches.json_patch import copy_json, json_kind


class MergePatchUndecodable(BadRequest):
    """The patch is not an object."""


@refuse_too_deep
def apply_merge_patch(doc: dict[str, Any], patch: Any) -> dict[str, Any]:
    """Return the document with the patch merged. The arguments are not modified, and the caller may modify the
    result."""
    if patch is None:
        raise MergePatchUndecodable("Invalid JSON Patch")
    if not isinstance(patch, dict):
        kind = json_kind(patch)
        target = "Go value of type map[string]interface {}"
        raise MergePatchUndecodable(f"error decoding patch: json: cannot unmarshal {kind} into {target}")
    merged: dict[str, Any] = copy_json(_merge(doc, patch))
    return merged


def _merge(doc: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    merged = dict(doc)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
            continue
        current = merged.get(key)
        if not isinstance(current, dict):
            merged[key] = _without_nulls(value)
        elif isinstance(value, dict):
            merged[key] = _merge(current, value)
        else:
            merged[key] = value
    return merged


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
