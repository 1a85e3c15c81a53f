"""Which records a list or watch is about: label and field selectors over what the store holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from herder.engine.apiserver.options import ListOptions
from herder.engine.apiserver.resources import Resource, Version
from herder.engine.apiserver.scope import RequestContext
from herder.engine.apiserver.stored import decode, memo_of
from herder.engine.meta.errors import BadRequest
from herder.engine.meta.kinds import Object
from herder.engine.meta.selectors import FieldSelector, LabelSelector
from herder.engine.store import Key, Record

_OF_ALL = ("metadata.name", "metadata.namespace")


class Selection:
    """One request's selectors. `everything` is the common case that needs no look at the object."""

    __slots__ = ("_call", "_extra", "_fields", "_labels", "everything", "name", "needs_object")

    def __init__(self, call: RequestContext, options: ListOptions) -> None:
        self._call = call
        self._labels: LabelSelector = options.labels
        self._fields: FieldSelector = options.fields
        check_fields(call.resource, call.version, options.fields)
        self.name = options.fields.exact("metadata.name") or ""
        self._extra = any(item.field not in _OF_ALL for item in options.fields.requirements)
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
    """Whether the request is allowed for the name that it is narrowed to, and not for the whole collection."""
    if not call.info.name:
        return False
    whole = msgspec.structs.replace(call.access(call.info.verb), name="")
    return not call.parts.authorizer.authorize(call.user, whole).allowed


def is_of_earlier_object(call: RequestContext, record: Record) -> bool:
    """Whether this state of the past is of an object that was deleted since. Rights on a name do not reach back to it:
    it may have been another user's."""
    now = call.parts.store.get(record.key)
    return now is None or now.created != record.created


def is_before_namespace(call: RequestContext, revision: int) -> bool:
    """Whether rights in a namespace do not reach back to this revision: an earlier one of the name was there then."""
    home = call.parts.store.get(Key("namespaces", "", call.namespace)) if call.namespace else None
    if home is None or revision >= home.created:
        return False
    everywhere = msgspec.structs.replace(call.access(call.info.verb), namespace="", name="")
    return not call.parts.authorizer.authorize(call.user, everywhere).allowed


def selectable_fields(resource: Resource, version: Version, obj: Object) -> dict[str, str]:
    fields = dict(resource.strategy.fields(obj))
    for path in version.selectable:
        fields[path.lstrip(".")] = _at(obj, path)
    return fields


def _at(obj: Object, path: str) -> str:
    value: Any = obj
    for step in path.strip(".").split("."):
        value = value.get(step) if isinstance(value, dict) else None
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def check_fields(resource: Resource, version: Version, selector: FieldSelector) -> None:
    if not selector:
        return
    known = {*_OF_ALL, *_declared(resource), *(path.lstrip(".") for path in version.selectable)}
    for item in selector.requirements:
        if item.field not in known:
            raise BadRequest(_unknown_field(resource, item.field))


def _unknown_field(resource: Resource, field: str) -> str:
    if resource.custom or _declared(resource):
        return f"field label not supported: {field}"
    return f'"{field}" is not a known field selector: only "metadata.name", "metadata.namespace"'


def _declared(resource: Resource) -> dict[str, str]:
    """The names of the fields that a kind can be selected by, whatever an object has in them."""
    return resource.strategy.fields({"metadata": {}})
