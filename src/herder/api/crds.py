"""CustomResourceDefinitions of Setting and of the Flock example."""

from __future__ import annotations

from herder.api.capi.crds.definition import STATUS
from herder.api.capi.crds.schema import BOOLEAN, string, with_description
from herder.api.definitions import definition, root
from herder.api.example import FLOCK
from herder.api.settings import SETTING

STRING = {"type": "string"}

SETTING_CRD = definition(
    SETTING,
    root(
        {
            "value": string("Value of the setting; empty is the default."),
            "default": string("Default of the setting."),
            "customized": with_description(BOOLEAN, "Accepted for compatibility, not used."),
            "source": string("Accepted for compatibility, not used."),
        },
        "A setting of the manager.",
    ),
    columns=[{"name": "Value", "type": "string", "jsonPath": ".value"}],
)

FLOCK_CRD = definition(
    FLOCK,
    {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "spec": {
                "type": "object",
                "properties": {
                    "size": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 100, "default": 3},
                    "minAvailable": {"type": "integer", "format": "int32", "minimum": 0, "default": 1},
                    "message": {"type": "string", "maxLength": 1024},
                    "pauseSeconds": {"type": "integer", "format": "int32", "minimum": 0, "default": 0},
                },
                "x-kubernetes-validations": [
                    {
                        "rule": "self.minAvailable <= self.size",
                        "message": "minAvailable cannot be greater than size",
                    }
                ],
            },
            "status": {
                "type": "object",
                "properties": {
                    "observedGeneration": {"type": "integer", "format": "int64"},
                    "members": {"type": "integer", "format": "int32"},
                    "upToDate": {"type": "integer", "format": "int32"},
                    "phase": STRING,
                    "waitingFor": STRING,
                },
            },
        },
    },
    columns=[
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
        {"name": "Members", "type": "integer", "jsonPath": ".status.members"},
        {"name": "Up-to-date", "type": "integer", "jsonPath": ".status.upToDate"},
        {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ],
    subresources=STATUS,
)
