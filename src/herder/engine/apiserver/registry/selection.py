"""Label and field selectors of list and watch, evaluated on stored records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from herder.engine.apiserver.context import RequestContext
from herder.engine.apiserver.registry.resources import Resource, Version
from herder.engine.apiserver.registry.storage_codec import decode, memo_of
from herder.engine.apiserver.request.options import ListOptions
from herder.engine.meta.errors import BadRequest
from herder.engine.meta.kinds import Object
from herder.engine.meta.selectors import FieldSelector, LabelSelector
from herder.engine.store import Key, Record

_COMMON_FIELDS = ("metadata.name", "metadata.namespace")


class Selection:
    """The selectors of one request. If `everything` is set, records match without being decoded."""

    __slots__ = ("_call", "_extra", "_fields", "_labels", "everything", "name", "needs_object")

    def __init__(self, call: RequestContext, options: ListOptions) -> None:
        self._call = call
        self._labels: LabelSelector = options.labels
        self._fields: FieldSelector = options.fields
        check_fields(call.resource, call.version, options.fields)
        self.name = options.fields.exact("metadata.name") or ""
        self._extra = any(item.field not in _COMMON_FIELDS for item in options.fields.requirements)
        self.everything = not options.labels and not options.fields

    def matches(self, record: Record) -> bool:
        if self.everything:
            return True
        if self._labels and not self._labels.matches(memo_of(record).labels):
            return False
        return not self._fields or self._fields.matches(self._fields_of(record))

    def _fields_of(self, record: Record) -> Mapping[str, str]:
        own = {"metadata.name": record.key.name, "metadata.namespace": record.key.namespace}
        if not self._extra:
            return own
        memo = memo_of(record)
        version = self._call.version.name
        known = memo.fields.get(version) if memo.fields else None
        if known is None:
            known = selectable_fields(self._call.resource, self._call.version, decode(record))
            memo.fields = {**(memo.fields or {}), version: known}
        return {**known, **own}


def is_granted_by_name(call: RequestContext) -> bool:
    """Whether the request is authorized only for the name it selects, and not for the whole collection."""
    if not call.info.name:
        return False
    unnamed = msgspec.structs.replace(call.access_attributes(call.info.verb), name="")
    return not call.deps.authorizer.authorize(call.user, unnamed).allowed


def is_of_earlier_object(call: RequestContext, record: Record) -> bool:
    """Whether a historical record belongs to an object that has been deleted since.

    Permissions on a name do not apply to it: the earlier object of that name may have belonged to another user.
    """
    now = call.deps.store.get(record.key)
    return now is None or now.created != record.created


def is_before_namespace(call: RequestContext, revision: int) -> bool:
    """Whether a revision is older than the namespace, and the user has permissions in this namespace only.

    An earlier namespace of the same name may have belonged to another user.
    """
    namespace = _namespace_of(call)
    return namespace is not None and revision < namespace.created and _is_granted_in_namespace(call)


class StreamPermissions:
    """Whether a started watch or log is still allowed, for the same reason as at its start.

    Permissions in its namespace only end with the namespace: the next namespace of the same name may belong to another
    user.
    """

    def __init__(self, call: RequestContext) -> None:
        self._call = call
        self.granted_by_name = is_granted_by_name(call)
        self._is_bound = bool(call.namespace) and _is_granted_in_namespace(call)
        self._created = self._created_now()
        self._generation = call.deps.authorizer.generation
        self._ended = False

    def may_have_ended(self) -> bool:
        """Whether `have_ended` has to be called. While events are published, the authorizer must not be asked: it could
        miss changes of the policy in the same batch.
        """
        return self._ended or self._is_of_former_namespace() or self._is_outdated()

    def have_ended(self) -> bool:
        if self._is_outdated():
            self._generation = self._call.deps.authorizer.generation
            self._ended = self._ended or not self._is_granted()
        return self._ended or self._is_of_former_namespace()

    def _is_outdated(self) -> bool:
        return self._call.deps.authorizer.generation != self._generation

    def _is_granted(self) -> bool:
        """A user who keeps only permissions on the name, or in the namespace, has to start another stream."""
        call = self._call
        is_allowed = call.deps.authorizer.authorize(call.user, call.access_attributes(call.info.verb)).allowed
        if not is_allowed or (is_granted_by_name(call) and not self.granted_by_name):
            return False
        return self._is_bound or not call.namespace or not _is_granted_in_namespace(call)

    def _is_of_former_namespace(self) -> bool:
        return self._is_bound and self._created_now() != self._created

    def _created_now(self) -> int:
        namespace = _namespace_of(self._call) if self._is_bound else None
        return namespace.created if namespace is not None else 0


def _namespace_of(call: RequestContext) -> Record | None:
    return call.deps.store.get(Key("namespaces", "", call.namespace)) if call.namespace else None


def _is_granted_in_namespace(call: RequestContext) -> bool:
    cluster_wide = msgspec.structs.replace(call.access_attributes(call.info.verb), namespace="", name="")
    return not call.deps.authorizer.authorize(call.user, cluster_wide).allowed


def selectable_fields(resource: Resource, version: Version, obj: Object) -> dict[str, str]:
    """Return the values of an object's selectable fields besides name and namespace."""
    fields = dict(resource.strategy.fields(obj))
    for path in version.selectable:
        fields[path.lstrip(".")] = _field_value(obj, path)
    return fields


def _field_value(obj: Object, path: str) -> str:
    value: Any = obj
    for step in path.strip(".").split("."):
        value = value.get(step) if isinstance(value, dict) else None
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def check_fields(resource: Resource, version: Version, selector: FieldSelector) -> None:
    """Reject a field selector with a field that the kind does not support."""
    if not selector:
        return
    known = {*_COMMON_FIELDS, *_selectable_names(resource), *(path.lstrip(".") for path in version.selectable)}
    for item in selector.requirements:
        if item.field not in known:
            raise BadRequest(_unknown_field(resource, item.field))


def _unknown_field(resource: Resource, field: str) -> str:
    if resource.custom or _selectable_names(resource):
        return f"field label not supported: {field}"
    return f'"{field}" is not a known field selector: only "metadata.name", "metadata.namespace"'


def _selectable_names(resource: Resource) -> dict[str, str]:
    """Return the names of the selectable fields of a kind, regardless of their values."""
    return resource.strategy.fields({"metadata": {}})
