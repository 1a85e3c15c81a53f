"""Admission of references: the author must be allowed to use what a new or changed reference names.

Both engines use it: the embedded server in its own admission chain, a real one through a webhook. A write that changes
no reference costs no access review.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from herder.api.capi import kinds as capi
from herder.api.capi.admission.values import count_values
from herder.api.machines.credentials import CREATOR
from herder.api.machines.hosts import HOSTED_DRIVERS
from herder.api.machines.kinds import CONFIG_GROUP, NODE_DRIVER, driver_of, kinds_of
from herder.api.references.approvals import APPROVED, Approval, Change, approval, compare, recorded, with_record
from herder.api.references.catalogue import (
    DRIVER_GROUPS,
    SECRETS,
    USE,
    VERSIONS,
    FieldReference,
    Target,
    field_references,
)
from herder.engine.client.client import Client
from herder.engine.client.wire import User
from herder.engine.meta.errors import Forbidden, NotFound, forbidden
from herder.engine.meta.kinds import GroupKind, GroupResource, GroupVersionResource, Object

May = Callable[[User, str, Target], Awaitable[bool]]
"""Whether a user has a right (a verb) on an object."""

NAMED_AT_MOST = 2000
"""References that one object may hold: each new one costs an access review and a read."""


VALUES_AT_MOST = 40_000
"""Values that an object of a user may hold: all of them are looked at, on the event loop, before it is validated."""


_HOSTED = {
    (kind.group, kind.plural): driver
    for driver in HOSTED_DRIVERS
    for kind in (kinds_of(driver).config, kinds_of(driver).template, kinds_of(driver).machine)
}
"""Drivers whose machines run on the manager's host, by the resources that machines are created from."""


@dataclass(frozen=True, slots=True)
class Write:
    """One create or update under review."""

    kind: GroupKind
    resource: GroupResource
    namespace: str
    name: str
    obj: Object
    old: Object | None
    user: User
    dry_run: bool = False


class ReferenceAdmission:
    """`manager` is the user that the controllers write as: its records are the only ones trusted."""

    def __init__(self, client: Client, may: May, manager: User) -> None:
        self._client = client
        self._may = may
        self._manager = manager

    async def admit(self, write: Write) -> Object:
        """The object with the record of its approved references. Raises Forbidden for one that is not."""
        if self._is_manager(write.user):
            return self._of_manager(write)
        if _is_too_large(write.obj) and not (write.old is not None and _is_too_large(write.old)):
            raise _refused(write, f"more than {VALUES_AT_MOST} values; make it smaller")
        await self._check_driver(write)
        if write.old is not None and _parts(write.obj) == _parts(write.old):
            return write.obj
        obj, (now, before) = _with_creator(write), _both(write)
        if not now:
            return with_record(obj, None)
        change = compare(obj, write.old, now, before)
        if len(change.new) > NAMED_AT_MOST:
            raise _refused(write, f"{len(change.new)} references; an object may hold {NAMED_AT_MOST}")
        if write.kind.group == capi.GROUP and change.new:
            await self._check_hosted(write, now)
        return with_record(obj, (*change.kept, *await self._reviewed(write, change)))

    async def _check_hosted(self, write: Write, references: Iterable[FieldReference]) -> None:
        """A new reference, such as to bootstrap data, decides what machines run that an old one has created."""
        for reference in references:
            if driver := _HOSTED.get(reference.target[:2], ""):
                await self._check_use(write, driver, reference.field)

    async def _check_driver(self, write: Write) -> None:
        """Machines of these drivers are processes of the manager's host, which no role for creating clusters implies.

        Service accounts are not exempt: whoever may create one, or its tokens, would use it to pass. The account of
        another Cluster API core, which clones templates, needs the right too.
        """
        driver = driver_of(write.kind.kind) if write.kind.group in DRIVER_GROUPS else ""
        if driver in HOSTED_DRIVERS and _content(write.obj) != _content(write.old):
            await self._check_use(write, driver)

    async def _check_use(self, write: Write, driver: str, field: str = "") -> None:
        if not await self._may(write.user, USE, Target(*NODE_DRIVER.resource.group_resource, "", driver)):
            why = _not_usable(write.user, driver)
            raise _refused(write, f"{field}: {why}" if field else why)

    def _is_manager(self, user: User) -> bool:
        """By name, and by what a user of the same name that somebody creates would lack."""
        manager = self._manager
        return user.name == manager.name and user.uid == manager.uid and set(manager.groups) <= set(user.groups)

    def _of_manager(self, write: Write) -> Object:
        """What the controllers derive carries its record along. What they add to a user's object is approved, without
        an author."""
        stored = recorded(write.old)
        if stored is None or recorded(write.obj) != stored:
            return write.obj
        change = compare(write.obj, write.old, *_both(write))
        if not change.new:
            return write.obj
        added = (approval(each, "", "") for each in change.new)
        return with_record(write.obj, (*change.kept, *added))

    async def _reviewed(self, write: Write, change: Change) -> list[Approval]:
        found: dict[tuple[str, Target], str] = {}
        for reference in change.new:
            key = (reference.verb, reference.target)
            if key not in found:
                found[key] = await self._uid(write, reference)
        return [approval(each, found[each.verb, each.target], write.user.name) for each in change.new]

    async def _uid(self, write: Write, reference: FieldReference) -> str:
        """Of a target that the author may use; empty where it does not exist yet. The answer to others does not say
        whether it exists."""
        target = await self._read(reference.target)
        allowed = await self._is_allowed(write.user, reference, target)
        if not (allowed or _is_creator(write.user, reference.target, target)) and not (
            target is None and await self._could_create(write, reference.target)
        ):
            raise _refused(write, _lacking(write.user, reference))
        # The manager creates machines from the target, and admission does not check what the manager writes.
        if driver := _HOSTED.get(reference.target[:2], ""):
            await self._check_use(write, driver, reference.field)
        return str((target or {"metadata": {}})["metadata"].get("uid") or "")

    async def _is_allowed(self, user: User, reference: FieldReference, found: Object | None) -> bool:
        """Rights on one name are those of the creator of an object, and end a moment after it was deleted. They are
        good for no object of that name that is still to be created: it may be another user's."""
        target = reference.target
        is_absent = found is None and target.group in VERSIONS
        return await self._may(user, reference.verb, target._replace(name="") if is_absent else target)

    async def _could_create(self, write: Write, target: Target) -> bool:
        """A dry run stores no reference. Clients try a Cluster before they create what it names."""
        return write.dry_run and await self._may(write.user, "create", target._replace(name=""))

    async def _read(self, target: Target) -> Object | None:
        version = VERSIONS.get(target.group)
        if version is None:
            return None
        resource = GroupVersionResource(target.group, version, target.resource)
        try:
            return await self._client.get(resource, target.name, namespace=target.namespace)
        except NotFound:
            return None


def _is_too_large(obj: Object) -> bool:
    return count_values(_content(obj), VALUES_AT_MOST) > VALUES_AT_MOST


def _parts(obj: Object) -> tuple[object, object]:
    """What holds references and their record."""
    return obj.get("spec"), (obj.get("metadata") or {}).get("annotations")


def _content(obj: Object | None) -> Object:
    """All that a user decides; fields of machine configs are not in a spec."""
    return {name: value for name, value in (obj or {}).items() if name not in ("metadata", "status")}


def _both(write: Write) -> tuple[list[FieldReference], list[FieldReference]]:
    """The references that the object has with this write, and those that it had before."""
    before = field_references(write.kind, write.old, write.namespace) if write.old is not None else []
    return field_references(write.kind, write.obj, write.namespace), before


# --- creators -------------------------------------------------------------------------------------------------------


def _with_creator(write: Write) -> Object:
    """Who creates a machine config may use it, though nothing else grants rights on it."""
    if write.kind.group != CONFIG_GROUP:
        return write.obj
    meta = write.obj.get("metadata") or {}
    marks = dict(meta.get("annotations") or {})
    before = ((write.old or {}).get("metadata") or {}).get("annotations") or {}
    creator = write.user.name if write.old is None else before.get(CREATOR)
    if marks.get(CREATOR) == creator:
        return write.obj
    marks.pop(CREATOR, None)
    return {**write.obj, "metadata": {**meta, "annotations": marks | ({CREATOR: creator} if creator else {})}}


def _is_creator(user: User, target: Target, found: Object | None) -> bool:
    """By the annotation of a machine config, or of a cloud credential until its creator is given a role."""
    if found is None or not user.name or (target.group != CONFIG_GROUP and target[:2] != SECRETS):
        return False
    return bool((found["metadata"].get("annotations") or {}).get(CREATOR) == user.name)


# --- refusals -------------------------------------------------------------------------------------------------------


def _lacking(user: User, reference: FieldReference) -> str:
    target = reference.target
    place = f' in the namespace "{target.namespace}"' if target.namespace else " at the cluster scope"
    return (
        f'{reference.field}: User "{user.name}" cannot {reference.verb} resource "{target.resource}" in API group '
        f'"{target.group}"{place}, which a reference to "{target.name}" needs; name an object that you may use'
    )


def _not_usable(user: User, driver: str) -> str:
    return (
        f'User "{user.name}" cannot {USE} NodeDriver "{driver}", whose machines run on the host of the manager; '
        f"choose another driver, or ask an administrator for the verb {USE} on {NODE_DRIVER.plural}"
    )


def _refused(write: Write, why: str) -> Forbidden:
    return forbidden(write.resource, write.name, why)


def is_recorded(objects: Iterable[Object | None]) -> bool:
    """Whether any of these carries a record."""
    return any(APPROVED in (((each or {}).get("metadata") or {}).get("annotations") or {}) for each in objects)
