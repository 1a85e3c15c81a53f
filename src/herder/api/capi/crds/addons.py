"""CRDs of ClusterResourceSet and ClusterResourceSetBinding."""

from __future__ import annotations

from herder.api.capi import kinds
from herder.api.capi.crds import pieces
from herder.api.capi.crds.definition import AGE, CLUSTER, PAUSED, STATUS, condition_column, definition
from herder.api.capi.crds.labels import CORE_LABELS
from herder.api.capi.crds.schema import BOOLEAN, TIME, atomic_list, record, string

_NAME = string(min=1, max=253)
_RESOURCE = {"kind!": string(enum=["Secret", "ConfigMap"]), "name!": _NAME}

CLUSTER_RESOURCE_SET = definition(
    kinds.CLUSTER_RESOURCE_SET,
    "Manifests that are applied to every selected Cluster.",
    schema={
        "spec!": record(
            {
                "clusterSelector!": pieces.SELECTOR,
                "resources!": atomic_list(record(_RESOURCE), min=1, max=100),
                "strategy": string(enum=["ApplyOnce", "Reconcile"]),
            }
        ),
        "status": pieces.status({"deprecated": pieces.deprecated()}),
    },
    subresources=STATUS,
    labels=CORE_LABELS,
    columns=[condition_column("Applied", "ResourcesApplied"), PAUSED, AGE],
)

CLUSTER_RESOURCE_SET_BINDING = definition(
    kinds.CLUSTER_RESOURCE_SET_BINDING,
    "Records which manifests were applied to a Cluster, and when.",
    schema={
        "spec!": record(
            {
                "clusterName!": pieces.CLUSTER_NAME,
                "bindings": atomic_list(
                    record(
                        {
                            "clusterResourceSetName!": _NAME,
                            "resources": atomic_list(
                                record(
                                    _RESOURCE
                                    | {
                                        "applied!": BOOLEAN,
                                        "hash": string(min=1, max=256),
                                        "lastAppliedTime": TIME,
                                    }
                                ),
                                max=100,
                            ),
                        }
                    ),
                    max=100,
                ),
            }
        )
    },
    labels=CORE_LABELS,
    columns=[CLUSTER, AGE],
)
