"""ObjectMeta of custom resources: decoded as strictly as Go decodes its struct, whatever the rest of the object is.

A schema may say nothing about metadata but name patterns; its shape is fixed. Unknown fields vanish and are reported,
a value of the wrong type refuses the object, nulls are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from herder.engine.meta.kinds import Object

Unknown = list[str]
_Decode = Callable[[Any, str, str, Unknown], Any]  # value, Go field, JSON path, where to note unknown fields


class MalformedMetadata(Exception):
    """The words of Go's decoder; the caller says which object it was."""


def coerce(metadata: Any, path: str = "metadata") -> tuple[Object, Unknown]:
    """The metadata with known fields only, and the paths of the others."""
    unknown: Unknown = []
    if not isinstance(metadata, dict):
        raise MalformedMetadata(f"json: cannot unmarshal {_told(metadata)} into Go value of type v1.ObjectMeta")
    return _struct(metadata, "ObjectMeta", path, unknown, _OBJECT_META), unknown


def _struct(value: Object, name: str, path: str, unknown: Unknown, fields: Mapping[str, _Decode]) -> Object:
    decoded: Object = {}
    for key, item in value.items():
        decode = fields.get(key)
        if decode is None:
            unknown.append(f"{path}.{key}" if path else key)
        elif item is not None:
            decoded[key] = decode(item, f"{name}.{key}", f"{path}.{key}", unknown)
    return decoded


def _plain(python: type, go: str) -> _Decode:
    def decode(value: Any, field: str, path: str, unknown: Unknown) -> Any:
        if type(value) is not python:
            raise _mismatch(value, field, go)
        return value

    return decode


def _time(value: Any, field: str, path: str, unknown: Unknown) -> str:
    if not isinstance(value, str):
        raise MalformedMetadata(f"json: cannot unmarshal {_told(value)} into Go value of type string")
    if not _RFC3339.match(value):
        raise MalformedMetadata(
            f'parsing time "{value}" as "2006-01-02T15:04:05Z07:00": cannot parse "{value}" as "2006"'
        )
    return value


def _strings(value: Any, field: str, path: str, unknown: Unknown) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _mismatch(value, field, "map[string]string")
    for item in value.values():
        if item is not None and not isinstance(item, str):
            raise _mismatch(item, field, "string")
    return {key: item or "" for key, item in value.items()}


def _string_list(value: Any, field: str, path: str, unknown: Unknown) -> list[str]:
    if not isinstance(value, list):
        raise _mismatch(value, field, "[]string")
    for item in value:
        if not isinstance(item, str):
            raise _mismatch(item, field, "string")
    return value


def _structs(go: str, name: str, fields: Mapping[str, _Decode]) -> _Decode:
    def decode(value: Any, field: str, path: str, unknown: Unknown) -> list[Object]:
        if not isinstance(value, list):
            raise _mismatch(value, field, f"[]v1.{go}")
        for item in value:
            if not isinstance(item, dict):
                raise _mismatch(item, field, f"v1.{go}")
        return [_struct(item, name, f"{path}[{index}]", unknown, fields) for index, item in enumerate(value)]

    return decode


def _any_object(value: Any, field: str, path: str, unknown: Unknown) -> Any:
    if not isinstance(value, dict):
        raise _mismatch(value, field, "v1.FieldsV1")
    return value


def _mismatch(value: Any, field: str, go: str) -> MalformedMetadata:
    return MalformedMetadata(f"json: cannot unmarshal {_told(value)} into Go struct field {field} of type {go}")


def _told(value: Any) -> str:
    match value:
        case bool():
            return "bool"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)\Z")
_STRING = _plain(str, "string")
_INT64 = _plain(int, "int64")
_BOOL = _plain(bool, "bool")
_UID = _plain(str, "types.UID")
_OWNER: Mapping[str, _Decode] = {
    "apiVersion": _STRING,
    "kind": _STRING,
    "name": _STRING,
    "uid": _UID,
    "controller": _BOOL,
    "blockOwnerDeletion": _BOOL,
}
_MANAGED_FIELDS: Mapping[str, _Decode] = {
    "manager": _STRING,
    "operation": _plain(str, "v1.ManagedFieldsOperationType"),
    "apiVersion": _STRING,
    "time": _time,
    "fieldsType": _STRING,
    "fieldsV1": _any_object,
    "subresource": _STRING,
}
_OBJECT_META: Mapping[str, _Decode] = {
    "name": _STRING,
    "generateName": _STRING,
    "namespace": _STRING,
    "selfLink": _STRING,
    "uid": _UID,
    "resourceVersion": _STRING,
    "generation": _INT64,
    "creationTimestamp": _time,
    "deletionTimestamp": _time,
    "deletionGracePeriodSeconds": _INT64,
    "labels": _strings,
    "annotations": _strings,
    "ownerReferences": _structs("OwnerReference", "OwnerReference", _OWNER),
    "finalizers": _string_list,
    "managedFields": _structs("ManagedFieldsEntry", "ManagedFieldsEntry", _MANAGED_FIELDS),
}
