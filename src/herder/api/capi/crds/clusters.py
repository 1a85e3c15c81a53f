"""CRDs of Cluster and ClusterClass. ClusterClasses are stored only: no controller acts on them."""

from __future__ import annotations

from herder.api.capi import kinds
from herder.api.capi.crds import pieces
from herder.api.capi.crds.definition import (
    AGE,
    PAUSED,
    PHASE,
    STATUS,
    column,
    condition_column,
    count,
    definition,
)
from herder.api.capi.crds.labels import CORE_LABELS
from herder.api.capi.crds.schema import (
    BOOLEAN,
    OPEN_OBJECT,
    atomic_list,
    int32,
    map_list,
    record,
    string,
    string_map,
    with_description,
)
from herder.api.capi.crds.topology import TOPOLOGY

_PORT = int32(min=1, max=65535)
_NETWORK_RANGES = record({"cidrBlocks!": atomic_list(string(min=1, max=43), min=1, max=100)})

_SPEC = record(
    {
        "paused": with_description(BOOLEAN, "Stops reconciliation of the cluster and its objects."),
        "infrastructureRef": with_description(
            pieces.REFERENCE, "Reference to the provider's infrastructure cluster object."
        ),
        "controlPlaneRef": with_description(pieces.REFERENCE, "Reference to the provider's control plane object."),
        "controlPlaneEndpoint": record(
            {"host": string(min=1, max=512), "port": _PORT}, "Address of the cluster's API server.", filled=True
        ),
        "clusterNetwork": record(
            {
                "apiServerPort": _PORT,
                "pods": _NETWORK_RANGES,
                "services": _NETWORK_RANGES,
                "serviceDomain": string(min=1, max=253),
            },
            filled=True,
        ),
        "availabilityGates": pieces.GATES,
        "topology": TOPOLOGY,
    },
    filled=True,
)

_MACHINE_COUNTS = record(
    pieces.REPLICA_COUNTS | {"desiredReplicas": pieces.COUNT, "versions": pieces.CLUSTER_VERSIONS_IN_USE}
)

_STATUS = pieces.status(
    {
        "phase": string(enum=["Pending", "Provisioning", "Provisioned", "Deleting", "Failed", "Unknown"]),
        "initialization": record(
            {"infrastructureProvisioned": BOOLEAN, "controlPlaneInitialized": BOOLEAN},
            "Initialization steps that have completed; they are never reset.",
            filled=True,
        ),
        "failureDomains": map_list(
            ["name"],
            record(
                {
                    "name!": string(min=1, max=256),
                    "controlPlane": with_description(BOOLEAN, "Whether control plane machines may be placed here."),
                    "attributes": string_map(),
                }
            ),
            min=1,
            max=100,
        ),
        "controlPlane": _MACHINE_COUNTS,
        "workers": _MACHINE_COUNTS,
        "deprecated": pieces.deprecated(pieces.FAILURE),
    }
)

CLUSTER = definition(
    kinds.CLUSTER,
    "A Kubernetes cluster with its infrastructure, control plane and workers.",
    schema={"spec!": _SPEC, "status": _STATUS},
    subresources=STATUS,
    short=["cl"],
    labels=CORE_LABELS,
    columns=[
        column("ClusterClass", ".spec.topology.classRef.name"),
        condition_column("Available", "Available"),
        count("CP Desired", ".status.controlPlane.desiredReplicas"),
        count("CP Current", ".status.controlPlane.replicas", wide=True),
        count("CP Ready", ".status.controlPlane.readyReplicas", wide=True),
        count("CP Available", ".status.controlPlane.availableReplicas"),
        count("CP Up-to-date", ".status.controlPlane.upToDateReplicas"),
        count("W Desired", ".status.workers.desiredReplicas"),
        count("W Current", ".status.workers.replicas", wide=True),
        count("W Ready", ".status.workers.readyReplicas", wide=True),
        count("W Available", ".status.workers.availableReplicas"),
        count("W Up-to-date", ".status.workers.upToDateReplicas"),
        PAUSED,
        PHASE,
        AGE,
        column("Version", ".spec.topology.version"),
    ],
)

CLUSTER_CLASS = definition(
    kinds.CLUSTER_CLASS,
    "A topology template for Clusters; stored only.",
    schema={"spec!": OPEN_OBJECT, "status": OPEN_OBJECT},
    subresources=STATUS,
    short=["cc"],
    labels=CORE_LABELS,
    columns=[PAUSED, condition_column("Variables Ready", "VariablesReady"), AGE],
)
