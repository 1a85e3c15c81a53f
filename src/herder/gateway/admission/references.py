"""Admission of references: the author must be allowed to use what a new or changed reference names.

The embedded server calls it in its admission chain, a real API server through a webhook. Writes that change no
reference need no access review.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from herder.api.capi import kinds as capi
from herder.api.capi.admission.values import count_values
from herder.api.capi.names import annotations_of, is_deleting
from herder.api.identity.tenancy.secrets import OWN_TYPES
from herder.api.machines.credentials import CREATED_BY, CREATOR
from herder.api.machines.hosts import HOSTED_DRIVERS
from herder.api.machines.kinds import CONFIG_GROUP, NODE_DRIVER, driver_of, kinds_of
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.references.approvals import (
    APPROVED,
    REVIEW,
    Approval,
    ReferenceChange,
    approval,
    compare,
    recorded,
    with_record,
)
from herder.api.references.catalogue import (
    CHANGE,
    DRIVER_GROUPS,
    SECRETS,
    USE,
    VERSIONS,
    FieldReference,
    Target,
    field_references,
    implied_references,
)
from herder.api.rke.kinds import CONTROL_PLANE
from herder.engine.client.client import Client
from herder.engine.meta.errors import Forbidden, NotFound, forbidden
from herder.engine.meta.kinds import GroupKind, GroupResource, GroupVersionResource, Object
from herder.engine.wire import User

May = Callable[[User, str, Target], Awaitable[bool]]
"""Whether a user has a right (a verb) on an object."""

MAX_REFERENCES = 2000
"""Maximum number of references in an object: each new one costs an access review and a read."""


MAX_VALUES = 40_000
"""Maximum number of values in a user's object: all are visited on the event loop before validation."""


_CLUSTERS = (PROVISIONING_CLUSTER, CONTROL_PLANE)
"""Kinds whose references to Secrets are copied to machines."""
_PAGE_SIZE = 100
"""Clusters in memory at a time, when the creator of a Secret changes it."""


_HOSTED = {
    (kind.group, kind.plural): driver
    for driver in HOSTED_DRIVERS
    for kind in (kinds_of(driver).config, kinds_of(driver).template, kinds_of(driver).machine)
}
"""Drivers whose machines run on the manager's host, by the resources that machines are created from."""


@dataclass(frozen=True, slots=True)
class Restored:
    """References that a restore adds to a write, and the UIDs of the objects that the cluster was allowed to reference.

    The author of the restore does not see them, and another user may have created an object of that name since.
    """

    references: frozenset[tuple[str, Target]]
    objects: frozenset[str]


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
    restored: Restored | None = None


class ReferenceAdmission:
    """Reviews references. `manager` is the user that the controllers write as; only its approval records are
    trusted."""

    def __init__(self, client: Client, may: May, manager: User) -> None:
        self._client = client
        self._may = may
        self._manager = manager

    async def admit(self, write: Write) -> Object:
        """Return the object with the record of its approved references; raise Forbidden if one is not allowed."""
        if self._is_manager(write.user):
            return self._admit_manager(write)
        if _is_too_large(write.obj) and not (write.old is not None and _is_too_large(write.old)):
            raise _refused(write, f"more than {MAX_VALUES} values; make it smaller")
        await self._check_driver(write)
        if write.old is None:
            await self._check_name(write)
        if write.old is not None and _parts(write.obj) == _parts(write.old):
            return write.obj
        if changes_own_secret(write.kind, write.old, write.obj, write.user.name):
            await self._check_clusters(write)
        obj, (now, before) = _with_creator(write), _both(write)
        if not now:
            return with_record(obj, None)
        change = compare(obj, write.old, now, before)
        if len(change.new) > MAX_REFERENCES:
            raise _refused(write, f"{len(change.new)} references; an object may hold {MAX_REFERENCES}")
        if write.old is not None and _data(write.obj) != _data(write.old):
            await self._check_content(write, change.kept, now)
        if write.kind.group == capi.GROUP and change.new:
            await self._check_hosted(write, now)
        return with_record(obj, (*change.kept, *await self._reviewed(write, change)))

    async def _check_name(self, write: Write) -> None:
        """The manager uses existing objects under the name of a new object: its author must be allowed to use them
        too."""
        for reference in implied_references(write.kind, write.obj, write.namespace):
            target = await self._read(reference.target)
            if target is None or _is_creator(write.user, reference, target):
                continue
            if not await self._may(write.user, reference.verb, reference.target):
                raise _refused(write, _missing_right(write.user, reference))

    async def _check_hosted(self, write: Write, references: Iterable[FieldReference]) -> None:
        """A new reference, such as to bootstrap data, decides what machines of an existing reference run."""
        for reference in references:
            if driver := _HOSTED.get(reference.target[:2], ""):
                await self._check_use(write, driver, reference.field)

    async def _check_driver(self, write: Write) -> None:
        """Machines of these drivers are processes on the manager's host, which no cluster role implies.

        Service accounts are not exempt: whoever can create one, or its tokens, could use it. Another Cluster API core
        that clones templates needs the right too.
        """
        driver = driver_of(write.kind.kind) if write.kind.group in DRIVER_GROUPS else ""
        if driver in HOSTED_DRIVERS and _content(write.obj) != _content(write.old):
            await self._check_use(write, driver)

    async def _check_use(self, write: Write, driver: str, field: str = "") -> None:
        if not await self._may(write.user, USE, Target(*NODE_DRIVER.resource.group_resource, "", driver)):
            why = _not_usable(write.user, driver)
            raise _refused(write, f"{field}: {why}" if field else why)

    async def _check_content(
        self, write: Write, kept: Iterable[Approval], references: Iterable[FieldReference]
    ) -> None:
        """The content of a Secret is copied to its targets. Who approved that needs the right for each new content:
        the rights of a creator on the Secret outlast those on a cluster. Editors whom the author trusts need none.
        """
        own = {each.key: each.uid for each in kept if each.author == write.user.name}
        for reference in references:
            uid = own.get(reference.key)
            if uid is None:
                continue
            target = await self._read(reference.target)
            if uid and uid != _uid_of(target):
                continue  # Controllers do not resolve it.
            if not await self._is_allowed(write.user, reference, target):
                raise _refused(write, _missing_right(write.user, reference))

    async def _check_clusters(self, write: Write) -> None:
        """The same for clusters that reference the Secret, such as for files on their machines.

        Only the creator of a Secret has rights on it that outlast those on a cluster. A cluster that is being deleted
        gets no new content, but its machines may need another credential to be removed.
        """
        target, uid = Target(*SECRETS, write.namespace, write.name), _uid_of(write.old)

        def is_approval(each: Approval) -> bool:
            return each.key[1] == target and each.author == write.user.name and each.uid in ("", uid)

        def reduced(cluster: Object) -> Object:
            uses = not is_deleting(cluster) and any(is_approval(each) for each in recorded(cluster) or ())
            return {"metadata": cluster["metadata"]} if uses else {}

        for kind in _CLUSTERS:
            with suppress(NotFound):  # The kind may not be installed.
                page = await self._client.list_all(kind.resource, page_size=_PAGE_SIZE, transform=reduced)
                for meta in (each["metadata"] for each in page.items if each):
                    await self._check_cluster(write, meta["namespace"], meta["name"])

    async def _check_cluster(self, write: Write, namespace: str, name: str) -> None:
        """The manager derives an RKEControlPlane from a provisioning Cluster, on which owners have no rights."""
        targets = [Target(*kind.resource.group_resource, namespace, name) for kind in _CLUSTERS]
        for target in targets:
            if await self._may(write.user, CHANGE, target):
                return
        raise _refused(write, _used_elsewhere(write.user, targets[0]))

    def _is_manager(self, user: User) -> bool:
        """Compare UID and groups too, which a user of the same name would lack."""
        manager = self._manager
        return user.name == manager.name and user.uid == manager.uid and set(manager.groups) <= set(user.groups)

    def _admit_manager(self, write: Write) -> Object:
        """Derived objects carry the record of their source; references that controllers add to a user's object are
        approved without an author."""
        stored = recorded(write.old)
        if stored is None or recorded(write.obj) != stored:
            return write.obj
        change = compare(write.obj, write.old, *_both(write))
        if not change.new:
            return write.obj
        added = (approval(each, "", "") for each in change.new)
        return with_record(write.obj, (*change.kept, *added))

    async def _reviewed(self, write: Write, change: ReferenceChange) -> list[Approval]:
        found: dict[tuple[str, Target], Object] = {}
        for reference in change.new:
            key = (reference.verb, reference.target)
            if key not in found:
                found[key] = _facts(await self._target(write, reference))
        before: defaultdict[Target, list[Approval]] = defaultdict(list)
        for known in recorded(write.old) or ():
            before[known.key[1]].append(known)
        approvals = []
        for each in change.new:
            target = found[each.verb, each.target]
            if write.restored is not None and each.key in write.restored.references:
                author = _creator_of(target) or write.user.name  # the author of the restore does not see it
            else:
                author = _author(each, target, before.get(each.target, ()), write.user.name)
            approvals.append(approval(each, _uid_of(target), author))
        return approvals

    async def _target(self, write: Write, reference: FieldReference) -> Object | None:
        """A target that the author may use; None if it does not exist. The refusal does not reveal whether it
        exists."""
        target = await self._read(reference.target)
        allowed = await self._is_allowed(write.user, reference, target)
        if not (allowed or _is_creator(write.user, reference, target)) and not (
            target is None and await self._could_create(write, reference.target)
        ):
            raise _refused(write, _missing_right(write.user, reference))
        if _is_replaced(write.restored, reference, target):  # Only authors with rights on the target see this.
            raise _refused(write, _recreated(reference))
        # The manager creates machines from the target, and admission does not check the manager's writes.
        if driver := _HOSTED.get(reference.target[:2], ""):
            await self._check_use(write, driver, reference.field)
        return target

    async def _is_allowed(self, user: User, reference: FieldReference, found: Object | None) -> bool:
        """A right on one name belongs to the creator of an object and ends shortly after its deletion.

        It does not apply to a future object of that name, which may be another user's.
        """
        target = reference.target
        is_absent = found is None and target.group in VERSIONS
        return await self._may(user, reference.verb, target._replace(name="") if is_absent else target)

    async def _could_create(self, write: Write, target: Target) -> bool:
        """A dry run stores no reference; clients dry-run a Cluster before they create its dependencies."""
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
    return count_values(_content(obj), MAX_VALUES) > MAX_VALUES


def _uid_of(target: Object | None) -> str:
    return str((target or {"metadata": {}})["metadata"].get("uid") or "")


def _facts(target: Object | None) -> Object:
    """What an approval needs: there can be many targets, with much content."""
    meta = (target or {"metadata": {}})["metadata"]
    return {"metadata": {"uid": meta.get("uid"), "annotations": meta.get("annotations")}}


def _author(reference: FieldReference, target: Object, before: Sequence[Approval], writer: str) -> str:
    """The author of an approval.

    Whoever reviews or moves a reference approves the content of a Secret as it is now. For other content, the author
    of the reference still needs the rights, or the creator if the Secret was recreated: they may have lost them since.
    """
    creator, uid = _creator_of(target), _uid_of(target)
    for each in before:
        if each.key == reference.key:
            return each.author if each.author and each.uid in ("", uid) else creator or writer
    return creator if creator in {each.author for each in before} else writer


def _creator_of(target: Object) -> str:
    marks = annotations_of(target)
    return str(marks.get(CREATED_BY) or marks.get(CREATOR) or "")


def _parts(obj: Object) -> tuple[object, object, object]:
    """The parts that hold references, their record, and the content that is copied to their targets."""
    return obj.get("spec"), (obj.get("metadata") or {}).get("annotations"), _data(obj)


def _data(obj: Object) -> object:
    return obj.get("data") or {}


def _content(obj: Object | None) -> Object:
    """Everything a user decides; the fields of machine configs are not in a spec."""
    return {name: value for name, value in (obj or {}).items() if name not in ("metadata", "status")}


def _both(write: Write) -> tuple[list[FieldReference], list[FieldReference]]:
    """References of the object with and before this write."""
    before = field_references(write.kind, write.old, write.namespace) if write.old is not None else []
    return field_references(write.kind, write.obj, write.namespace), before


# --- creators -------------------------------------------------------------------------------------------------------


def _with_creator(write: Write) -> Object:
    """The creator of a machine config may use it, though no RBAC grants it."""
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


def _is_creator(user: User, reference: FieldReference, found: Object | None) -> bool:
    """By the annotation of a machine config, or of a cloud credential until its creator has a role.

    A creator may use a machine config in machine pools alone. As infrastructure, the Cluster would own it, show it to
    the creator and delete it, also if it is that of a cluster whose owners removed the creator.
    """
    if found is None or not user.name or not (reference.is_machine_config or _is_users_secret(reference, found)):
        return False
    return bool((found["metadata"].get("annotations") or {}).get(CREATOR) == user.name)


def changes_own_secret(kind: GroupKind, old: Object | None, new: Object, user: str) -> bool:
    """Whether the creator of a Secret changes its content."""
    if kind != capi.SECRET.group_kind or old is None or _data(old) == _data(new):
        return False
    marks = annotations_of(old)
    return bool(user) and user in (marks.get(CREATED_BY), marks.get(CREATOR))


def _is_replaced(restored: Restored | None, reference: FieldReference, target: Object | None) -> bool:
    """Whether a restore adds this reference, and its name is now that of an object that was never approved."""
    return restored is not None and reference.key in restored.references and _uid_of(target) not in restored.objects


def _is_users_secret(reference: FieldReference, found: Object) -> bool:
    """Whether it is a Secret of a type that users create. Others, such as plans, are the manager's."""
    return reference.target[:2] == SECRETS and (found.get("type") or "Opaque") in OWN_TYPES


# --- refusals -------------------------------------------------------------------------------------------------------


def _missing_right(user: User, reference: FieldReference) -> str:
    target = reference.target
    place = f' in the namespace "{target.namespace}"' if target.namespace else " at the cluster scope"
    return (
        f'{reference.field}: User "{user.name}" cannot {reference.verb} resource "{target.resource}" in API group '
        f'"{target.group}"{place}, which a reference to "{target.name}" needs; name an object that you may use'
    )


def _recreated(reference: FieldReference) -> str:
    return (
        f"{reference.field}: {reference.target} is not the object that the restored spec had referenced, or no longer "
        f"exists; check it, and set annotation {REVIEW} to a new value in the same write to use it, or restore only "
        "the data (restoreRKEConfig: none)"
    )


def _used_elsewhere(user: User, cluster: Target) -> str:
    return (
        f'data: {cluster} uses the Secret, and User "{user.name}" cannot {CHANGE} it; delete the Secret and create '
        "another, or ask an owner of the cluster to remove the reference"
    )


def _not_usable(user: User, driver: str) -> str:
    return (
        f'User "{user.name}" cannot {USE} NodeDriver "{driver}", whose machines run on the host of the manager; '
        f"choose another driver, or ask an administrator for the verb {USE} on {NODE_DRIVER.plural}, "
        "which the GlobalRole host-machines grants"
    )


def _refused(write: Write, why: str) -> Forbidden:
    return forbidden(write.resource, write.name, why)


def is_recorded(objects: Iterable[Object | None]) -> bool:
    """Whether any of these objects has an approval record."""
    return any(APPROVED in (((each or {}).get("metadata") or {}).get("annotations") or {}) for each in objects)
