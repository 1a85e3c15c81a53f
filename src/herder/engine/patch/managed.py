"""metadata.managedFields: kept up on every write, and asked by server-side apply, as kube-apiserver does both."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from herder.engine.meta.kinds import Object
from herder.engine.patch.applying import Application
from herder.engine.patch.depth import refuse_too_deep
from herder.engine.patch.fieldset import FieldSet, difference, in_order, union
from herder.engine.patch.listitems import TypedError
from herder.engine.patch.managers import (
    UPDATE,
    InvalidManagedFields,
    ManagerId,
    Managers,
    Owned,
    cap_updaters,
    decode,
    encode,
)
from herder.engine.patch.ownership import STRIPPED, change_between, move, reconciled
from herder.engine.patch.pathelement import SELF
from herder.engine.patch.versions import Convert, TypeOf, Versions

__all__ = ["InvalidManagedFields", "apply", "keep_times_of_noop", "track_update", "validate_managed_fields"]


_NAMING = frozenset(element.removeprefix("f:") for element, node in STRIPPED.items() if not node)
_SYSTEM_METADATA = frozenset(element.removeprefix("f:") for element in STRIPPED["f:metadata"])


def track_update(
    new: Object,
    old: Object | None,
    *,
    manager: str,
    api_version: str,
    now: datetime,
    type_of: TypeOf,
    operation: str = UPDATE,
    subresource: str = "",
    convert: Convert | None = None,
    reset: FieldSet | None = None,
) -> list[Object]:
    """The managedFields entries for an object that is about to be written by any means but apply.

    `new` and `old` (None on create) are in `api_version`, and neither is changed. The answer is the very list that
    `old` has where nothing moved, and empty where the object shall have none. `reset` names, as FieldsV1, the fields
    that this endpoint ignores, such as `{"f:status": {}}`.
    """
    versions = Versions(api_version, type_of, convert, reset)
    managers, entries = _managers_to_start_from(new, old, subresource, versions)
    if old is not None and not managers:
        return []  # someone cleared them, or they were never kept: only an apply starts tracking again
    who = ManagerId.of(manager, operation, api_version, subresource)
    try:
        if old is None and not managers:
            return _first_manager(new, versions, who, timestamp(now))
        after = _after_update(managers, bare(old or {}), bare(new), versions, who, timestamp(now))
    except (TypedError, RecursionError):
        return []  # what the type cannot make sense of has no owners
    return entries if after is None else encode(cap_updaters(after))


def _first_manager(new: Object, versions: Versions, who: ManagerId, now: str) -> list[Object]:
    """All of a new object is its creator's: the common case, and nobody is there to lose anything."""
    change = change_between({}, _ownable(new), versions, versions.request)
    mine = dict(change.changed) if change is not None else {}
    # Metadata itself is nobody's, what is in it may be.
    metadata = {element: node for element, node in mine.pop("f:metadata", {}).items() if element != SELF}
    if metadata:
        mine["f:metadata"] = metadata
    return encode({who: Owned(in_order(mine), versions.request, now)}) if mine else []


def _ownable(new: Object) -> Object:
    """The object without what nobody owns: the same as taking `STRIPPED` from the set of all its fields."""
    ownable = {key: value for key, value in new.items() if key not in _NAMING}
    metadata = new.get("metadata")
    if isinstance(metadata, dict):
        ownable["metadata"] = {key: value for key, value in metadata.items() if key not in _SYSTEM_METADATA}
    return ownable


def _managers_to_start_from(
    new: Object, old: Object | None, subresource: str, versions: Versions
) -> tuple[Managers, list[Object]]:
    """Those that the request names, if it names any and may; else those of the stored object."""
    sent = (new.get("metadata") or {}).get("managedFields")
    stored = ((old or {}).get("metadata") or {}).get("managedFields") or []
    if not subresource and sent is not None and sent != stored:
        if _asks_for_reset(sent, versions):
            return {}, []
        try:
            managers = decode(sent, trusted=False)
        except (InvalidManagedFields, AttributeError):
            managers = {}
        if managers:
            return managers, encode(managers)
    try:
        return decode(stored, trusted=True), stored
    except InvalidManagedFields:
        return {}, []


def _asks_for_reset(sent: Any, versions: Versions) -> bool:
    """One empty entry; for built-ins also an empty list, which custom resources lose before anybody looks at it."""
    if sent == []:
        of = versions.type_at(versions.request)
        return of is not None and of.builtin
    if not isinstance(sent, list) or len(sent) != 1:
        return False
    return not sent[0] or (isinstance(sent[0], dict) and not any(sent[0].values()))


def _after_update(
    managers: Managers, old: Object, new: Object, versions: Versions, who: ManagerId, now: str
) -> Managers | None:
    """None: nobody's fields moved."""
    current = reconciled(managers, versions)
    moved = move(current, old, new, versions, actor=None, force=True)
    mine = difference(moved.change.changed, STRIPPED)
    after = moved.managers
    if mine:
        previous = after.get(who)
        fields = union(previous.fields, mine) if previous else mine
        after[who] = Owned(fields, versions.request, now)
    elif len(after) == len(managers) and all(after.get(one) is owned for one, owned in managers.items()):
        return None
    return after


@refuse_too_deep
def apply(
    live: Object | None,
    applied: Object,
    *,
    manager: str,
    force: bool,
    api_version: str,
    now: datetime,
    type_of: TypeOf,
    subresource: str = "",
    kind: str = "",
    convert: Convert | None = None,
    reset: FieldSet | None = None,
) -> Object:
    """The object after server-side apply of a configuration, with its managedFields.

    Raises Conflict with the real server's message and causes where others own what would change and `force` is not
    set, BadRequest for a configuration of another kind or with managedFields, and StatusError where it does not fit
    its type. `live` is None where there is no such object yet. Neither argument is changed, and the answer is the
    caller's own to change, but for the entries. Applying what is there already answers an object equal to `live`, so
    that nothing needs to be written.
    """
    versions = Versions(api_version, type_of, convert, reset)
    application = Application(live, applied, versions, manager, subresource, timestamp(now))
    application.check(kind)
    return application.run(force)


def validate_managed_fields(entries: Any) -> None:
    """Raise InvalidManagedFields where entries cannot be read, as after a mutating webhook had them in its hands."""
    try:
        decode(entries, trusted=False)
    except AttributeError:
        raise InvalidManagedFields("managed fields entry is not an object") from None


def keep_times_of_noop(new: Object, old: Object) -> list[Object]:
    """The entries to store with `new`: those of `old` where the two objects differ in nothing but when their managers
    acted, so that an apply which was undone on its way (by defaulting, by a webhook) writes nothing."""
    fresh: list[Object] = (new.get("metadata") or {}).get("managedFields") or []
    stored: list[Object] = (old.get("metadata") or {}).get("managedFields") or []
    if len(fresh) != len(stored) or not fresh or fresh == stored:
        return fresh
    timeless = [[{**entry, "time": None} for entry in entries] for entries in (fresh, stored)]
    if timeless[0] != timeless[1] or bare(new) != bare(old):
        return fresh
    return stored


def bare(obj: Mapping[str, Any]) -> Object:
    """The object without its managedFields."""
    metadata = obj.get("metadata")
    if not metadata or "managedFields" not in metadata:
        return dict(obj)
    return {**obj, "metadata": {key: value for key, value in metadata.items() if key != "managedFields"}}


def timestamp(now: datetime) -> str:
    return now.isoformat(timespec="seconds")[:19] + "Z"
