"""Prune fields that the applier set last time but not this time, unless another manager owns them."""

from __future__ import annotations

from herder.engine.meta.kinds import Object
from herder.engine.patch.fieldpath.fieldset import FieldSet, difference, intersection, union
from herder.engine.patch.fieldpath.paths import owned_paths
from herder.engine.patch.ssa.managers import Managers, Owned
from herder.engine.patch.ssa.versions import Typed, Versions
from herder.engine.patch.typed.items import remove_items, with_named_fields
from herder.engine.patch.typed.types import TypeRef


def prune(merged: Object, managers: Managers, last: Owned, versions: Versions) -> Object:
    """Prune the merged object. `managers` has the applier's new set; `last` is its previous one, in the version it
    was written in."""
    old_version = versions.at(merged, last.api_version)
    if old_version is None:
        return merged
    pruned = _without(old_version, with_named_fields(old_version.of, last.fields))
    pruned = _add_back_owned(old_version.value, pruned, last.api_version, managers, versions)
    pruned = _add_back_unowned(old_version, pruned, last, versions)
    new_version = versions.at(pruned, versions.request)
    return merged if new_version is None else new_version.value


def _without(typed: Typed, fields: FieldSet) -> Object:
    removed = remove_items(typed.of, typed.value, fields)
    return removed if isinstance(removed, dict) else {}


def _add_back_owned(merged: Object, pruned: Object, version: str, managers: Managers, versions: Versions) -> Object:
    """Restore owned fields, first in the pruned version: conversion to other versions may need them."""
    owned: dict[str, FieldSet] = {version: {}}
    for manager in managers.values():
        owned[manager.api_version] = union(owned.get(manager.api_version, {}), manager.fields)
    for at, fields in owned.items():
        complete, part = versions.at(merged, at), versions.at(pruned, at)
        if complete is None or part is None:
            continue
        merged = complete.value
        retained = union(_paths(complete.of, part.value), with_named_fields(complete.of, fields))
        pruned = _without(complete, difference(_paths(complete.of, merged), retained))
    return pruned


def _add_back_unowned(merged: Typed, pruned: Object, last: Owned, versions: Versions) -> Object:
    """Restore fields that the applier did not set but that were removed with their parents."""
    part = versions.at(pruned, last.api_version)
    if part is None:
        return merged.value
    removed = difference(_paths(merged.of, merged.value), _paths(merged.of, part.value))
    return _without(merged, intersection(removed, with_named_fields(merged.of, last.fields)))


def _paths(of: TypeRef, value: Object) -> FieldSet:
    return with_named_fields(of, owned_paths(of, value))
