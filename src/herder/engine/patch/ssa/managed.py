"""metadata.managedFields: tracked on every write, and used by server-side apply, as in kube-apiserver."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from herder.engine.meta.kinds import Object
from herder.engine.patch.depth import refuse_too_deep
from herder.engine.patch.fieldpath.fieldset import FieldSet, difference, in_order, union
from herder.engine.patch.fieldpath.path_element import SELF
from herder.engine.patch.ssa.apply import Application
from herder.engine.patch.ssa.managers import (
    UPDATE,
    InvalidManagedFields,
    ManagerId,
    Managers,
    Owned,
    cap_updaters,
    decode,
    encode,
)
from herder.engine.patch.ssa.ownership import STRIPPED, change_between, move_ownership, reconciled
from herder.engine.patch.ssa.versions import Convert, TypeOf, Versions
from herder.engine.patch.typed.list_items import TypedError

__all__ = ["InvalidManagedFields", "apply", "keep_times_of_noop", "track_update", "validate_managed_fields"]


_IDENTITY_FIELDS = frozenset(element.removeprefix("f:") for element, node in STRIPPED.items() if not node)
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
    """Return the managedFields entries for a write other than apply.

    `new` and `old` (None on create) are in `api_version`; neither is modified. Returns the list of `old` itself if no
    ownership changed, and an empty list if the object must not have entries. `reset` names, as FieldsV1, the fields
    that this endpoint ignores, such as `{"f:status": {}}`.
    """
    versions = Versions(api_version, type_of, convert, reset)
    managers, entries = _initial_managers(new, old, subresource, versions)
    if old is not None and not managers:
        return []  # cleared, or never tracked: only an apply starts tracking again
    manager_id = ManagerId.of(manager, operation, api_version, subresource)
    try:
        if old is None and not managers:
            return _first_manager(new, versions, manager_id, timestamp(now))
        after = _after_update(
            managers, _strip_managed_fields(old or {}), _strip_managed_fields(new), versions, manager_id, timestamp(now)
        )
    except (TypedError, RecursionError):
        return []  # an object that does not match its type has no owners
    return entries if after is None else encode(cap_updaters(after))


def _first_manager(new: Object, versions: Versions, manager_id: ManagerId, now: str) -> list[Object]:
    """Return the entries of a new object: the creator owns everything."""
    change = change_between({}, _ownable(new), versions, versions.request)
    own = dict(change.changed) if change is not None else {}
    # Nobody owns metadata itself, only fields in it.
    metadata = {element: node for element, node in own.pop("f:metadata", {}).items() if element != SELF}
    if metadata:
        own["f:metadata"] = metadata
    return encode({manager_id: Owned(in_order(own), versions.request, now)}) if own else []


def _ownable(new: Object) -> Object:
    """Return the object without fields that cannot be owned; equivalent to removing `STRIPPED` from its field set."""
    ownable = {key: value for key, value in new.items() if key not in _IDENTITY_FIELDS}
    metadata = new.get("metadata")
    if isinstance(metadata, dict):
        ownable["metadata"] = {key: value for key, value in metadata.items() if key not in _SYSTEM_METADATA}
    return ownable


def _initial_managers(
    new: Object, old: Object | None, subresource: str, versions: Versions
) -> tuple[Managers, list[Object]]:
    """Return the managers of the request if it names any and may, else those of the stored object."""
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
    """Return whether the entries request a reset: one empty entry; for built-ins also an empty list."""
    if sent == []:
        of = versions.type_at(versions.request)
        return of is not None and of.builtin
    if not isinstance(sent, list) or len(sent) != 1:
        return False
    return not sent[0] or (isinstance(sent[0], dict) and not any(sent[0].values()))


def _after_update(
    managers: Managers, old: Object, new: Object, versions: Versions, manager_id: ManagerId, now: str
) -> Managers | None:
    """Return the managers after an update; None if no ownership changed."""
    current = reconciled(managers, versions)
    moved = move_ownership(current, old, new, versions, actor=None, force=True)
    own = difference(moved.change.changed, STRIPPED)
    after = moved.managers
    if own:
        previous = after.get(manager_id)
        fields = union(previous.fields, own) if previous else own
        after[manager_id] = Owned(fields, versions.request, now)
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
    """Return the object after server-side apply of a configuration, with its managedFields.

    Raises Conflict with kube-apiserver's message and causes if other managers own changed fields and `force` is not
    set, BadRequest for a configuration of another kind or with managedFields, and StatusError if it does not match its
    type. `live` is None if the object does not exist. The arguments are not modified; the caller may modify the result
    except for the entries. A no-op apply returns an object equal to `live`, so that nothing needs to be written.
    """
    versions = Versions(api_version, type_of, convert, reset)
    application = Application(live, applied, versions, manager, subresource, timestamp(now))
    application.check(kind)
    return application.run(force)


def validate_managed_fields(entries: Any) -> None:
    """Raise InvalidManagedFields if entries cannot be decoded, for example after a mutating webhook."""
    try:
        decode(entries, trusted=False)
    except AttributeError:
        raise InvalidManagedFields("managed fields entry is not an object") from None


def keep_times_of_noop(new: Object, old: Object) -> list[Object]:
    """Return the entries to store with `new`: those of `old` if the objects differ only in the times of managers.

    An apply that defaulting or a webhook undoes therefore writes nothing.
    """
    new_entries: list[Object] = (new.get("metadata") or {}).get("managedFields") or []
    stored: list[Object] = (old.get("metadata") or {}).get("managedFields") or []
    if len(new_entries) != len(stored) or not new_entries or new_entries == stored:
        return new_entries
    timeless = [[{**entry, "time": None} for entry in entries] for entries in (new_entries, stored)]
    if timeless[0] != timeless[1] or _strip_managed_fields(new) != _strip_managed_fields(old):
        return new_entries
    return stored


def _strip_managed_fields(obj: Mapping[str, Any]) -> Object:
    """The object without its managedFields."""
    metadata = obj.get("metadata")
    if not metadata or "managedFields" not in metadata:
        return dict(obj)
    return {**obj, "metadata": {key: value for key, value in metadata.items() if key != "managedFields"}}


def timestamp(now: datetime) -> str:
    return now.isoformat(timespec="seconds")[:19] + "Z"
