"""A CRD that uses most features."""

from __future__ import annotations

import copy
from datetime import UTC, datetime

from herder.engine.apiserver.registry.strategy import Context
from herder.engine.meta.kinds import Object
from herder.engine.wire import User

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

_WIDGETS: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com", "uid": "u1", "generation": 1},
    "spec": {
        "group": "example.com",
        "names": {
            "plural": "widgets",
            "singular": "widget",
            "kind": "Widget",
            "listKind": "WidgetList",
            "shortNames": ["wd"],
            "categories": ["all"],
        },
        "scope": "Namespaced",
        "conversion": {"strategy": "None"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {
                    "status": {},
                    "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
                },
                "additionalPrinterColumns": [
                    {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "description": "how big"},
                    {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
                    {"name": "When", "type": "date", "jsonPath": ".spec.when", "priority": 1},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                ],
                "selectableFields": [{"jsonPath": ".spec.color"}],
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "description": "A widget.",
                        "required": ["spec"],
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    "size": {"type": "integer", "format": "int32", "default": 3, "minimum": 0},
                                    "replicas": {"type": "integer"},
                                    "color": {"type": "string"},
                                    "when": {"type": "string", "format": "date-time", "nullable": True},
                                    "port": {"x-kubernetes-int-or-string": True},
                                    "raw": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                                    "inner": {
                                        "type": "object",
                                        "x-kubernetes-embedded-resource": True,
                                        "x-kubernetes-preserve-unknown-fields": True,
                                    },
                                },
                            },
                            "status": {
                                "type": "object",
                                "properties": {"replicas": {"type": "integer"}},
                            },
                        },
                    }
                },
            },
            {
                "name": "v1alpha1",
                "served": True,
                "storage": False,
                "deprecated": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            },
        ],
    },
    "status": {
        "acceptedNames": {
            "plural": "widgets",
            "singular": "widget",
            "kind": "Widget",
            "listKind": "WidgetList",
            "shortNames": ["wd"],
            "categories": ["all"],
        },
        "conditions": [
            {"type": "NamesAccepted", "status": "True"},
            {"type": "Established", "status": "True"},
        ],
        "storedVersions": ["v1"],
    },
}


def definition(plural: str = "widgets", kind: str = "Widget", *, settled: bool = True, **spec: object) -> Object:
    """Return a CRD of Widgets, or of another kind; with `settled=False` as a user would send it."""
    crd = copy.deepcopy(_WIDGETS)
    names = crd["spec"]["names"]
    names |= {"plural": plural, "kind": kind, "singular": kind.lower(), "listKind": f"{kind}List"}
    if kind != "Widget":
        names["shortNames"] = []
    crd["spec"] |= spec
    crd["metadata"]["name"] = f"{plural}.{crd['spec']['group']}"
    crd["status"]["acceptedNames"] = copy.deepcopy(names)
    if not settled:
        crd["status"] = {"storedVersions": ["v1"]}
    return crd


def context(subresource: str = "") -> Context:
    return Context(
        user=User("tester"),
        now=NOW,
        entropy=lambda size: b"0" * size,
        lookup=lambda resource, namespace, name: None,
        subresource=subresource,
    )
