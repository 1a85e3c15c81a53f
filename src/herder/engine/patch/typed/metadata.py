"""Schema of ObjectMeta, for custom resources, whose own schemas omit it."""

from __future__ import annotations

from typing import Any

_TEXT = {"type": "string"}
_NUMBER = {"type": "integer", "format": "int64"}
_TIME = {"type": "string", "format": "date-time"}
_TEXTS_BY_KEY = {"type": "object", "additionalProperties": _TEXT}

_OWNER_REFERENCE = {
    "type": "object",
    "x-kubernetes-map-type": "atomic",
    "properties": {
        "apiVersion": _TEXT,
        "blockOwnerDeletion": {"type": "boolean"},
        "controller": {"type": "boolean"},
        "kind": _TEXT,
        "name": _TEXT,
        "uid": _TEXT,
    },
}

_MANAGED_FIELDS_ENTRY = {
    "type": "object",
    "properties": {
        "apiVersion": _TEXT,
        "fieldsType": _TEXT,
        "fieldsV1": {"type": "object"},
        "manager": _TEXT,
        "operation": _TEXT,
        "subresource": _TEXT,
        "time": _TIME,
    },
}

OBJECT_META: dict[str, Any] = {
    "type": "object",
    "properties": {
        "annotations": _TEXTS_BY_KEY,
        "creationTimestamp": _TIME,
        "deletionGracePeriodSeconds": _NUMBER,
        "deletionTimestamp": _TIME,
        "finalizers": {"type": "array", "items": _TEXT, "x-kubernetes-list-type": "set"},
        "generateName": _TEXT,
        "generation": _NUMBER,
        "labels": _TEXTS_BY_KEY,
        "managedFields": {"type": "array", "items": _MANAGED_FIELDS_ENTRY, "x-kubernetes-list-type": "atomic"},
        "name": _TEXT,
        "namespace": _TEXT,
        "ownerReferences": {
            "type": "array",
            "items": _OWNER_REFERENCE,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["uid"],
        },
        "resourceVersion": _TEXT,
        "selfLink": _TEXT,
        "uid": _TEXT,
    },
}
