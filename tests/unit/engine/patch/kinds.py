"""A custom resource with every kind of list and map in its schema, for tests here and on a real server."""

from __future__ import annotations

from typing import Any

GROUP, VERSION, KIND, PLURAL = "patch.test", "v1", "Widget", "widgets"
API_VERSION = f"{GROUP}/{VERSION}"

TEXT = {"type": "string"}
NUMBER = {"type": "integer"}

ITEM: dict[str, Any] = {
    "type": "object",
    "required": ["port"],
    "properties": {
        "port": NUMBER,
        "protocol": {"type": "string", "default": "TCP"},
        "note": TEXT,
        "tags": {"type": "object", "additionalProperties": TEXT},
    },
}

SPEC: dict[str, Any] = {
    "type": "object",
    "properties": {
        "replicas": NUMBER,
        "title": {"type": "string", "nullable": True},
        "on": {"type": "boolean"},
        "ratio": {"type": "number"},
        "size": {"x-kubernetes-int-or-string": True},
        "granular": {"type": "object", "additionalProperties": TEXT},
        "atomic": {"type": "object", "additionalProperties": TEXT, "x-kubernetes-map-type": "atomic"},
        "struct": {"type": "object", "properties": {"a": TEXT, "b": NUMBER}},
        "atomicStruct": {
            "type": "object",
            "x-kubernetes-map-type": "atomic",
            "properties": {"a": TEXT, "b": NUMBER},
        },
        "set": {"type": "array", "items": TEXT, "x-kubernetes-list-type": "set"},
        "numbers": {"type": "array", "items": NUMBER, "x-kubernetes-list-type": "set"},
        "list": {"type": "array", "items": TEXT},
        "named": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": TEXT, "value": TEXT, "inner": {"type": "array", "items": TEXT}},
            },
        },
        "ports": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["port", "protocol"],
            "items": ITEM,
        },
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "embedded": {
            "type": "object",
            "x-kubernetes-embedded-resource": True,
            "x-kubernetes-preserve-unknown-fields": True,
        },
    },
}

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "spec": SPEC,
        "status": {
            "type": "object",
            "properties": {
                "phase": TEXT,
                "conditions": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["type"],
                    "items": {
                        "type": "object",
                        "required": ["type"],
                        "properties": {"type": TEXT, "status": TEXT, "reason": TEXT},
                    },
                },
            },
        },
    },
}

DEFINITION: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"{PLURAL}.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"plural": PLURAL, "singular": "widget", "kind": KIND, "listKind": "WidgetList"},
        "versions": [
            {
                "name": VERSION,
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": SCHEMA},
                "subresources": {"status": {}},
            }
        ],
    },
}


def widget(name: str = "w", **spec: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}}
    if spec:
        body["spec"] = spec
    return body
