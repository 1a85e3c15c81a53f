"""Field managers of an object: decoded and encoded metadata.managedFields."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from herder.engine.meta.kinds import Object
from herder.engine.patch.fieldpath.fieldset import FieldSet, InvalidFieldSet, from_fields_v1, union

APPLY, UPDATE = "Apply", "Update"
MAX_UPDATE_MANAGERS = 10
ANCIENT_CHANGES = "ancient-changes"


class InvalidManagedFields(ValueError):
    """Entries that cannot be decoded; the message is kube-apiserver's."""


class ManagerId(NamedTuple):
    """Identity of a manager. It does not include the version of appliers, which are the same in all versions."""

    manager: str
    operation: str
    api_version: str
    subresource: str

    @classmethod
    def of(cls, manager: str, operation: str, api_version: str, subresource: str) -> ManagerId:
        return cls(manager or "unknown", operation, "" if operation == APPLY else api_version, subresource)

    @property
    def applies(self) -> bool:
        return self.operation == APPLY

    def __str__(self) -> str:
        quoted_name = f'"{self.manager}"'
        if self.subresource:
            quoted_name += f' with subresource "{self.subresource}"'
        return quoted_name if self.applies else f"{quoted_name} using {self.api_version}"


@dataclass(frozen=True, slots=True)
class Owned:
    """Fields that a manager owns, and since when."""

    fields: FieldSet
    api_version: str
    time: str | None = None
    entry: Object | None = None  # the stored entry, reused if unchanged

    def with_fields(self, fields: FieldSet) -> Owned:
        return replace(self, fields=fields, entry=None)


Managers = dict[ManagerId, Owned]


def decode(entries: Any, *, trusted: bool) -> Managers:
    """Return the managers by identity. Trusted entries were written by this server and have canonical sets."""
    if not isinstance(entries, list):
        return {}
    managers: Managers = {}
    for position, entry in enumerate(entries):
        operation, api_version = entry.get("operation"), entry.get("apiVersion") or ""
        if operation not in (APPLY, UPDATE):
            raise InvalidManagedFields("operation must be `Apply` or `Update`")
        if not api_version:
            raise InvalidManagedFields("apiVersion must not be empty")
        kind = entry.get("fieldsType")
        if kind != "FieldsV1":
            raise InvalidManagedFields(
                f'invalid fieldsType "{kind}" in managed fields entry {position}'
                if kind
                else f"missing fieldsType in managed fields entry {position}"
            )
        manager, subresource = entry.get("manager") or "", entry.get("subresource") or ""
        manager_id = ManagerId(manager, operation, "" if operation == APPLY else api_version, subresource)
        if trusted:
            managers[manager_id] = Owned(entry.get("fieldsV1") or {}, api_version, entry.get("time"), entry)
        else:
            managers[manager_id] = Owned(_decode_fields(entry), api_version, entry.get("time"))
    return managers


def _decode_fields(entry: Object) -> FieldSet:
    try:
        return from_fields_v1(entry.get("fieldsV1"))
    except InvalidFieldSet as error:
        raise InvalidManagedFields(f"error decoding versioned set: {error}") from None


def encode(managers: Managers) -> list[Object]:
    """Return the entries in order: appliers before updaters, each by time and name."""
    ordered = sorted(managers.items(), key=_sort_key)
    return [owned.entry or _entry(manager_id, owned) for manager_id, owned in ordered]


def _sort_key(item: tuple[ManagerId, Owned]) -> tuple[str, str, str, str, str]:
    manager_id, owned = item
    return manager_id.operation, owned.time or "", manager_id.manager, owned.api_version, manager_id.subresource


def _entry(manager_id: ManagerId, owned: Owned) -> Object:
    entry: Object = {"manager": manager_id.manager} if manager_id.manager else {}
    entry["operation"] = manager_id.operation
    entry["apiVersion"] = owned.api_version
    if owned.time:
        entry["time"] = owned.time
    entry["fieldsType"] = "FieldsV1"
    entry["fieldsV1"] = owned.fields
    if manager_id.subresource:
        entry["subresource"] = manager_id.subresource
    return entry


def cap_updaters(managers: Managers) -> Managers:
    """Merge the oldest updaters per version if there are more than ten, so that managedFields cannot grow without
    limit. An updater that is alone in its version stays, because merging it would save nothing."""
    updaters = sorted(
        (manager_id for manager_id in managers if not manager_id.applies),
        key=lambda manager_id: (managers[manager_id].time or "", manager_id),
    )
    excess = len(updaters) - MAX_UPDATE_MANAGERS
    if excess <= 0:
        return managers
    managers = dict(managers)
    first_of_version: dict[str, ManagerId] = {}
    for manager_id in updaters:
        if excess <= 0:
            break
        owned = managers[manager_id]
        first = first_of_version.setdefault(owned.api_version, manager_id)
        if first == manager_id:
            continue
        bucket = ManagerId(ANCIENT_CHANGES, UPDATE, owned.api_version, "")
        if bucket not in managers:
            managers[bucket] = managers.pop(first)
        merged = union(owned.fields, managers[bucket].fields)
        del managers[manager_id]
        managers[bucket] = Owned(merged, owned.api_version, owned.time)
        excess -= 1
    return managers
