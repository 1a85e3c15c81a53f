"""Who owns which fields of an object: metadata.managedFields, decoded and encoded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from herder.engine.meta.kinds import Object
from herder.engine.patch.fieldset import FieldSet, InvalidFieldSet, from_fields_v1, union

APPLY, UPDATE = "Apply", "Update"
MAX_UPDATE_MANAGERS = 10
ANCIENT = "ancient-changes"


class InvalidManagedFields(ValueError):
    """Entries that cannot be read; the text is the real server's."""


class ManagerId(NamedTuple):
    """What tells managers apart. Appliers are the same in whatever version they apply, so theirs is left out."""

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
        named = f'"{self.manager}"'
        if self.subresource:
            named += f' with subresource "{self.subresource}"'
        return named if self.applies else f"{named} using {self.api_version}"


@dataclass(frozen=True, slots=True)
class Owned:
    """What a manager owns, and since when."""

    fields: FieldSet
    api_version: str
    time: str | None = None
    entry: Object | None = None  # as it is stored; kept so that what does not change need not be written anew

    def with_fields(self, fields: FieldSet) -> Owned:
        return replace(self, fields=fields, entry=None)


Managers = dict[ManagerId, Owned]


def decode(entries: Any, *, trusted: bool) -> Managers:
    """The managers by identity. Trusted entries are those that this server wrote, whose sets are canonical."""
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
        who = ManagerId(manager, operation, "" if operation == APPLY else api_version, subresource)
        if trusted:
            managers[who] = Owned(entry.get("fieldsV1") or {}, api_version, entry.get("time"), entry)
        else:
            managers[who] = Owned(_checked_fields(entry), api_version, entry.get("time"))
    return managers


def _checked_fields(entry: Object) -> FieldSet:
    try:
        return from_fields_v1(entry.get("fieldsV1"))
    except InvalidFieldSet as error:
        raise InvalidManagedFields(f"error decoding versioned set: {error}") from None


def encode(managers: Managers) -> list[Object]:
    """The entries in their order: appliers before updaters, each by time and name."""
    ordered = sorted(managers.items(), key=_place)
    return [owned.entry or _entry(who, owned) for who, owned in ordered]


def _place(item: tuple[ManagerId, Owned]) -> tuple[str, str, str, str, str]:
    who, owned = item
    return who.operation, owned.time or "", who.manager, owned.api_version, who.subresource


def _entry(who: ManagerId, owned: Owned) -> Object:
    entry: Object = {"manager": who.manager} if who.manager else {}
    entry["operation"] = who.operation
    entry["apiVersion"] = owned.api_version
    if owned.time:
        entry["time"] = owned.time
    entry["fieldsType"] = "FieldsV1"
    entry["fieldsV1"] = owned.fields
    if who.subresource:
        entry["subresource"] = who.subresource
    return entry


def cap_updaters(managers: Managers) -> Managers:
    """At most ten updaters: the oldest are gathered into one per version, so that managedFields cannot grow without
    end. An updater that is alone in its version stays, for gathering it would save nothing."""
    updaters = sorted((who for who in managers if not who.applies), key=lambda who: (managers[who].time or "", who))
    excess = len(updaters) - MAX_UPDATE_MANAGERS
    if excess <= 0:
        return managers
    managers = dict(managers)
    first_of_version: dict[str, ManagerId] = {}
    for who in updaters:
        if excess <= 0:
            break
        owned = managers[who]
        first = first_of_version.setdefault(owned.api_version, who)
        if first == who:
            continue
        bucket = ManagerId(ANCIENT, UPDATE, owned.api_version, "")
        if bucket not in managers:
            managers[bucket] = managers.pop(first)
        gathered = union(owned.fields, managers[bucket].fields)
        del managers[who]
        managers[bucket] = Owned(gathered, owned.api_version, owned.time)
        excess -= 1
    return managers
