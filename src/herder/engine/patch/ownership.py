"""How ownership of fields moves when an object changes."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from herder.engine.meta.kinds import Object
from herder.engine.patch.compare import compare
from herder.engine.patch.fieldset import FieldSet, Path, difference, intersection, paths, union
from herder.engine.patch.items import reconcile
from herder.engine.patch.managers import ManagerId, Managers
from herder.engine.patch.typed import TypeRef
from herder.engine.patch.versions import Versions

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
"""Fields that nobody owns: they name the object, or the server alone sets them."""

_RECONCILED_AT_MOST = 256


class Change(NamedTuple):
    """The paths that a write touched, in one version."""

    changed: FieldSet
    removed: FieldSet

    @property
    def touched(self) -> FieldSet:
        return union(self.changed, self.removed)


class Conflict(NamedTuple):
    who: ManagerId
    path: Path


class Conflicts(Exception):
    """Fields that an applier wants to change and others own."""

    def __init__(self, found: list[Conflict]) -> None:
        super().__init__(f"{len(found)} conflicts")
        self.found = found


def reconciled(managers: Managers, versions: Versions) -> Managers:
    """The managers with their sets brought in line with today's schema; those of versions that are gone are dropped.
    Schemas hardly ever change, so what was once found in order is remembered by its encoded form."""
    out: Managers = {}
    for who, owned in managers.items():
        of = versions.type_at(owned.api_version)
        if of is None:
            continue
        fields = _reconciled_set(of, owned.fields)
        out[who] = owned if fields is None else owned.with_fields(fields)
    return out


def _reconciled_set(of: TypeRef, fields: FieldSet) -> FieldSet | None:
    """None: it is in order as it is."""
    known = of.reconciled
    encoded = msgspec.json.encode(fields)
    if encoded in known:
        return known[encoded]  # type: ignore[no-any-return]
    result = reconcile(of, fields)
    answer = None if result == fields else result
    if len(known) >= _RECONCILED_AT_MOST:
        known.clear()
    known[encoded] = answer
    return answer


def change_between(old: Object, new: Object, versions: Versions, version: str) -> Change | None:
    """What changed, as seen in a version; None where that version is gone."""
    before, after = versions.at(old, version), versions.at(new, version)
    if before is None or after is None:
        return None
    found = compare(after.of, before.value, after.value)
    return Change(versions.without_reset(found.changed), versions.without_reset(found.removed))


class Moved(NamedTuple):
    managers: Managers
    change: Change  # in the request's version


def move(
    managers: Managers, old: Object, new: Object, versions: Versions, *, actor: ManagerId | None, force: bool
) -> Moved:
    """The managers after a write, in which all but the actor lose what it changed. Without force, taking a field that
    another one owns raises Conflicts."""
    own = change_between(old, new, versions, versions.request)
    change = own if own is not None else Change({}, {})
    by_version = {versions.request: own}
    out: Managers = {}
    conflicts: list[Conflict] = []
    for who, owned in managers.items():
        if who == actor:
            out[who] = owned
            continue
        version = owned.api_version
        if version not in by_version:
            by_version[version] = change_between(old, new, versions, version)
        seen = by_version[version]
        if seen is None:
            continue
        if not force:
            conflicts += [Conflict(who, path) for path in paths(intersection(owned.fields, seen.changed))]
        rest = difference(difference(owned.fields, seen.changed), seen.removed)
        out[who] = owned if rest is owned.fields else owned.with_fields(rest)
    if conflicts:
        raise Conflicts(conflicts)
    return Moved({who: owned for who, owned in out.items() if owned.fields}, change)
