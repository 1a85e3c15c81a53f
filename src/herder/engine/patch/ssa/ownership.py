"""Changes of field ownership by a write."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from herder.engine.meta.kinds import Object
from herder.engine.patch.fieldpath.fieldset import FieldSet, Path, difference, intersection, paths, union
from herder.engine.patch.ssa.managers import ManagerId, Managers
from herder.engine.patch.ssa.versions import Versions
from herder.engine.patch.typed.compare import compare
from herder.engine.patch.typed.items import reconcile
from herder.engine.patch.typed.types import TypeRef

STRIPPED: FieldSet = {
    "f:apiVersion": {},
    "f:kind": {},
    "f:metadata": {
        ".": {},
        "f:clusterName": {},
        "f:creationTimestamp": {},
        "f:generation": {},
        "f:managedFields": {},
        "f:name": {},
        "f:namespace": {},
        "f:resourceVersion": {},
        "f:selfLink": {},
        "f:uid": {},
    },
}
"""Fields without owner: they identify the object, or only the server sets them."""

_MAX_RECONCILED = 256


class Change(NamedTuple):
    """Paths that a write changed or removed, in one version."""

    changed: FieldSet
    removed: FieldSet

    @property
    def touched(self) -> FieldSet:
        return union(self.changed, self.removed)


class Conflict(NamedTuple):
    """A field that another manager owns."""

    manager_id: ManagerId
    path: Path


class Conflicts(Exception):
    """Fields that an applier wants to change but other managers own."""

    def __init__(self, found: list[Conflict]) -> None:
        super().__init__(f"{len(found)} conflicts")
        self.found = found


def reconciled(managers: Managers, versions: Versions) -> Managers:
    """Adapt the managers' sets to the current schema; drop those of removed versions. Results are cached by encoded
    set, because schemas rarely change."""
    out: Managers = {}
    for manager_id, owned in managers.items():
        of = versions.type_at(owned.api_version)
        if of is None:
            continue
        fields = _reconcile_set(of, owned.fields)
        out[manager_id] = owned if fields is None else owned.with_fields(fields)
    return out


def _reconcile_set(of: TypeRef, fields: FieldSet) -> FieldSet | None:
    """Return the adapted set; None if it is unchanged."""
    known = of.reconciled
    encoded = msgspec.json.encode(fields)
    if encoded in known:
        return known[encoded]  # type: ignore[no-any-return]
    result = reconcile(of, fields)
    answer = None if result == fields else result
    if len(known) >= _MAX_RECONCILED:
        known.clear()
    known[encoded] = answer
    return answer


def change_between(old: Object, new: Object, versions: Versions, version: str) -> Change | None:
    """Return the changes in a version; None if that version no longer exists."""
    before, after = versions.at(old, version), versions.at(new, version)
    if before is None or after is None:
        return None
    found = compare(after.of, before.value, after.value)
    return Change(versions.without_reset(found.changed), versions.without_reset(found.removed))


class Moved(NamedTuple):
    """Managers after a write, and its changes."""

    managers: Managers
    change: Change  # in the version of the request


def move_ownership(
    managers: Managers, old: Object, new: Object, versions: Versions, *, actor: ManagerId | None, force: bool
) -> Moved:
    """Return the managers after a write, in which all except the actor lose the changed fields. Without force,
    taking a field that another manager owns raises Conflicts."""
    own = change_between(old, new, versions, versions.request)
    change = own if own is not None else Change({}, {})
    by_version = {versions.request: own}
    out: Managers = {}
    conflicts: list[Conflict] = []
    for manager_id, owned in managers.items():
        if manager_id == actor:
            out[manager_id] = owned
            continue
        version = owned.api_version
        if version not in by_version:
            by_version[version] = change_between(old, new, versions, version)
        seen = by_version[version]
        if seen is None:
            continue
        if not force:
            conflicts += [Conflict(manager_id, path) for path in paths(intersection(owned.fields, seen.changed))]
        rest = difference(difference(owned.fields, seen.changed), seen.removed)
        out[manager_id] = owned if rest is owned.fields else owned.with_fields(rest)
    if conflicts:
        raise Conflicts(conflicts)
    return Moved({manager_id: owned for manager_id, owned in out.items() if owned.fields}, change)
