"""Removing from an object what its applier set last time and does not set this time, unless somebody else owns it."""

from __future__ import annotations

from herder.engine.meta.kinds import Object
from herder.engine.patch.fieldset import FieldSet, difference, intersection, union
from herder.engine.patch.items import remove_items, with_named_fields
from herder.engine.patch.managers import Managers, Owned
from herder.engine.patch.paths import owned_paths
from herder.engine.patch.typed import TypeRef
from herder.engine.patch.versions import Typed, Versions


def prune(merged: Object, managers: Managers, last: Owned, versions: Versions) -> Object:
    """`managers` has the applier's new set, `last` is its old one, in the version in which it was written."""
    then = versions.at(merged, last.api_version)
    if then is None:
        return merged
    pruned = _without(then, with_named_fields(then.of, last.fields))
    pruned = _add_back_owned(then.value, pruned, last.api_version, managers, versions)
    pruned = _add_back_unowned(then, pruned, last, versions)
    now = versions.at(pruned, versions.request)
    return merged if now is None else now.value


def _without(typed: Typed, fields: FieldSet) -> Object:
    removed = remove_items(typed.of, typed.value, fields)
    return removed if isinstance(removed, dict) else {}


def _add_back_owned(merged: Object, pruned: Object, version: str, managers: Managers, versions: Versions) -> Object:
    """First in the version that was pruned: other versions may need those fields to be converted to."""
    owned: dict[str, FieldSet] = {version: {}}
    for manager in managers.values():
        owned[manager.api_version] = union(owned.get(manager.api_version, {}), manager.fields)
    for at, fields in owned.items():
        whole, part = versions.at(merged, at), versions.at(pruned, at)
        if whole is None or part is None:
            continue
        merged = whole.value
        kept = union(_paths(whole.of, part.value), with_named_fields(whole.of, fields))
        pruned = _without(whole, difference(_paths(whole.of, merged), kept))
    return pruned


def _add_back_unowned(merged: Typed, pruned: Object, last: Owned, versions: Versions) -> Object:
    """What the applier did not set itself goes along with its surroundings, but must not."""
    part = versions.at(pruned, last.api_version)
    if part is None:
        return merged.value
    gone = difference(_paths(merged.of, merged.value), _paths(merged.of, part.value))
    return _without(merged, intersection(gone, with_named_fields(merged.of, last.fields)))


def _paths(of: TypeRef, value: Object) -> FieldSet:
    return with_named_fields(of, owned_paths(of, value))
