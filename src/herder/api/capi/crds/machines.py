"""CRDs of Machine, MachineSet, MachineDeployment and MachinePool."""

from __future__ import annotations

from herder.api.capi import kinds
from herder.api.capi.crds import pieces
from herder.api.capi.crds.definition import (
    AGE,
    CLUSTER,
    PAUSED,
    PHASE,
    STATUS,
    column,
    condition_column,
    count,
    definition,
    scale,
)
from herder.api.capi.crds.labels import CORE_LABELS
from herder.api.capi.crds.schema import (
    BOOLEAN,
    INT_OR_STRING,
    TIME,
    atomic_list,
    int32,
    int64,
    record,
    string,
    with_description,
)

_NODE_INFO = record(
    {
        f"{name}!": pieces.PLAIN
        for name in (
            "architecture",
            "bootID",
            "containerRuntimeVersion",
            "kernelVersion",
            "kubeProxyVersion",
            "kubeletVersion",
            "machineID",
            "operatingSystem",
            "osImage",
            "systemUUID",
        )
    }
    | {"swap": record({"capacity": int64()})},
    "System information reported by the Node.",
)

_ADDRESSES = atomic_list(
    record(
        {
            "type!": string(enum=["Hostname", "ExternalIP", "InternalIP", "ExternalDNS", "InternalDNS"]),
            "address!": string(min=1, max=256),
        }
    ),
    max=256,
)

_MACHINE_STATUS = pieces.status(
    {
        "initialization": pieces.INITIALIZED_MACHINE,
        "nodeRef": record({"name!": pieces.OBJECT_NAME}, "The Node of this Machine."),
        "nodeInfo": _NODE_INFO,
        "lastUpdated": with_description(TIME, "Time of the last change of the phase."),
        "failureDomain": with_description(pieces.FAILURE_DOMAIN, "Failure domain of the machine."),
        "addresses": _ADDRESSES,
        "phase": string(
            enum=[
                "Pending",
                "Provisioning",
                "Provisioned",
                "Running",
                "Updating",
                "Deleting",
                "Deleted",
                "Failed",
                "Unknown",
            ]
        ),
        "certificatesExpiryDate": TIME,
        "deletion": record(
            {
                "waitForPreDrainHookStartTime": TIME,
                "nodeDrainStartTime": TIME,
                "waitForNodeVolumeDetachStartTime": TIME,
                "waitForPreTerminateHookStartTime": TIME,
            },
            "Start times of the steps of the deletion.",
        ),
        "deprecated": pieces.deprecated(pieces.FAILURE),
    }
)

MACHINE = definition(
    kinds.MACHINE,
    "A machine that hosts a Node of a cluster.",
    schema={"spec!": pieces.MACHINE_SPEC, "status": _MACHINE_STATUS},
    subresources=STATUS,
    short=["ma"],
    labels=CORE_LABELS,
    columns=[
        CLUSTER,
        column("Node Name", ".status.nodeRef.name"),
        column("Provider ID", ".spec.providerID", wide=True),
        column("Failure domain", ".status.failureDomain"),
        condition_column("Ready", "Ready"),
        condition_column("Available", "Available"),
        condition_column("Up-to-date", "UpToDate"),
        column("Internal-IP", '.status.addresses[?(@.type=="InternalIP")].address', wide=True),
        column("External-IP", '.status.addresses[?(@.type=="ExternalIP")].address', wide=True),
        column("OS-Image", ".status.nodeInfo.osImage", wide=True),
        PAUSED,
        PHASE,
        AGE,
        column("Version", ".spec.version"),
    ],
)

_REPLICAS = int32("Desired number of Machines.")
_REPLICA_COLUMNS = [
    count("Desired", ".spec.replicas"),
    count("Current", ".status.replicas"),
    count("Ready", ".status.readyReplicas"),
    count("Available", ".status.availableReplicas"),
    count("Up-to-date", ".status.upToDateReplicas"),
    PAUSED,
]
_TEMPLATE_VERSION = column("Version", ".spec.template.spec.version")
_LEGACY_COUNTS = {"readyReplicas": pieces.COUNT, "availableReplicas": pieces.COUNT}
_SELECTED_COUNTS = pieces.REPLICA_COUNTS | {
    "selector": pieces.SELECTOR_TEXT,
    "versions": pieces.VERSIONS_IN_USE,
}

MACHINE_SET = definition(
    kinds.MACHINE_SET,
    "A set of identical Machines.",
    schema={
        "spec!": record(
            {
                "clusterName!": pieces.CLUSTER_NAME,
                "replicas": _REPLICAS,
                "selector!": pieces.SELECTOR,
                "template!": pieces.MACHINE_TEMPLATE,
                "machineNaming": pieces.NAMING,
                "deletion": pieces.SET_DELETION,
            }
        ),
        "status": pieces.status(
            {
                **_SELECTED_COUNTS,
                "deprecated": pieces.deprecated(
                    pieces.FAILURE | _LEGACY_COUNTS | {"fullyLabeledReplicas": pieces.COUNT}
                ),
            }
        ),
    },
    subresources=scale(),
    short=["ms"],
    labels=CORE_LABELS,
    columns=[CLUSTER, *_REPLICA_COLUMNS, AGE, _TEMPLATE_VERSION],
)

MACHINE_DEPLOYMENT = definition(
    kinds.MACHINE_DEPLOYMENT,
    "A set of Machines with rolling updates when the template changes.",
    schema={
        "spec!": record(
            {
                "clusterName!": pieces.CLUSTER_NAME,
                "replicas": _REPLICAS,
                "selector!": pieces.SELECTOR,
                "template!": pieces.MACHINE_TEMPLATE,
                "machineNaming": pieces.NAMING,
                "deletion": pieces.SET_DELETION,
                "rollout": pieces.ROLLOUT,
                "remediation": record({"maxInFlight": INT_OR_STRING}, filled=True),
                "paused": BOOLEAN,
            }
        ),
        "status": pieces.status(
            {
                **_SELECTED_COUNTS,
                "phase": string(enum=["ScalingUp", "ScalingDown", "Running", "Failed", "Unknown"]),
                "deprecated": pieces.deprecated(
                    _LEGACY_COUNTS | {"updatedReplicas": pieces.COUNT, "unavailableReplicas": pieces.COUNT}
                ),
            }
        ),
    },
    subresources=scale(),
    short=["md"],
    labels=CORE_LABELS,
    columns=[CLUSTER, condition_column("Available", "Available"), *_REPLICA_COLUMNS, PHASE, AGE, _TEMPLATE_VERSION],
)

_NODE_REFERENCE = record(
    dict.fromkeys(("apiVersion", "fieldPath", "kind", "name", "namespace", "resourceVersion", "uid"), pieces.PLAIN),
    atomic=True,
)

MACHINE_POOL = definition(
    kinds.MACHINE_POOL,
    "A set of machines that the provider manages as one group.",
    schema={
        "spec!": record(
            {
                "clusterName!": pieces.CLUSTER_NAME,
                "replicas": _REPLICAS,
                "template!": pieces.MACHINE_TEMPLATE,
                "providerIDList": atomic_list(string(min=1, max=512), max=10000),
                "failureDomains": atomic_list(string(min=1, max=256), max=100),
            }
        ),
        "status": pieces.status(
            {
                **pieces.REPLICA_COUNTS,
                "versions": pieces.VERSIONS_IN_USE,
                "initialization": pieces.INITIALIZED_MACHINE,
                "nodeRefs": atomic_list(_NODE_REFERENCE, max=10000),
                "phase": string(
                    enum=[
                        "Pending",
                        "Provisioning",
                        "Provisioned",
                        "Running",
                        "ScalingUp",
                        "ScalingDown",
                        "Scaling",
                        "Deleting",
                        "Failed",
                        "Unknown",
                    ]
                ),
                "deprecated": pieces.deprecated(
                    pieces.FAILURE | _LEGACY_COUNTS | {"unavailableReplicas": pieces.COUNT}
                ),
            }
        ),
    },
    subresources=scale(selector=False),
    short=["mp"],
    labels=CORE_LABELS,
    columns=[CLUSTER, *_REPLICA_COLUMNS, PHASE, AGE, _TEMPLATE_VERSION],
)
