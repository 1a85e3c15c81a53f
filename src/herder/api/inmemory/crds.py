"""CustomResourceDefinitions of the in-memory provider, with the fields of both contract versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from herder.api.capi.crds.definition import (
    AGE,
    PAUSED,
    STATUS,
    column,
    condition_column,
    count,
    definition,
    scale,
)
from herder.api.capi.crds.labels import CLUSTERCTL
from herder.api.capi.crds.pieces import (
    AFTER,
    FAILURE,
    GATES,
    MACHINE_DELETION,
    METADATA,
    PLAIN,
    REFERENCE,
    REPLICA_COUNTS,
    SELECTOR_TEXT,
    TAINTS,
    VERSION,
    deprecated,
    status,
)
from herder.api.capi.crds.schema import BOOLEAN, Schema, atomic_list, int32, map_list, record, string, string_map
from herder.api.capi.names import PROVIDER
from herder.api.inmemory import kinds
from herder.engine.meta.kinds import Kind, Object

INFRASTRUCTURE, BOOTSTRAP, CONTROL_PLANE = "infrastructure-inmemory", "bootstrap-inmemory", "control-plane-inmemory"

_CLUSTER = column("Cluster", r".metadata.labels['cluster\.x-k8s\.io/cluster-name']")
_PROVISIONED = column("Provisioned", ".status.initialization.provisioned", type="boolean")
_READY = condition_column("Ready", "Ready")
_ENDPOINT = record(
    {"host!": string(min=1, max=512), "port!": int32(min=1, max=65535)},
    "Address of the workload cluster's API server; set once it is up.",
)
_FAILURE_DOMAINS = map_list(
    ["name"],
    record({"name!": string(min=1, max=256), "controlPlane": BOOLEAN, "attributes": string_map()}),
    max=100,
)
_PROVISIONED_ONCE = record(
    {"provisioned": BOOLEAN}, "Initialization steps that have completed; they are never reset.", filled=True
)


def _kind(
    kind: Kind,
    description: str,
    provider: str,
    *,
    schema: Mapping[str, Schema],
    columns: Sequence[Object] = (),
    subresources: Object | None = None,
) -> Object:
    labels = {
        PROVIDER: provider,
        CLUSTERCTL: "",
        "cluster.x-k8s.io/v1beta1": kind.version,
        "cluster.x-k8s.io/v1beta2": kind.version,
    }
    shown = [*columns, AGE]
    return definition(kind, description, schema=schema, columns=shown, labels=labels, subresources=subresources)


def _template(kind: Kind, of: str, provider: str, spec: Schema) -> Object:
    template = record({"metadata": METADATA, "spec": spec})
    return _kind(kind, f"Template of {of} objects.", provider, schema={"spec!": record({"template!": template})})


_CLUSTER_SPEC = record({"controlPlaneEndpoint": _ENDPOINT, "failureDomains": _FAILURE_DOMAINS})
_CLUSTER_STATUS = status(
    {
        "initialization": _PROVISIONED_ONCE,
        "ready": BOOLEAN,
        "failureDomains": _FAILURE_DOMAINS,
        "apiFault": string("Fault that the workload API currently simulates."),
        "deprecated": deprecated(),
        **FAILURE,
    }
)

_MACHINE_SPEC = record(
    {
        "providerID": string(
            "Identifier of the machine at its provider; equal to the Node's providerID.", min=1, max=512
        ),
        "failureDomain": string("Failure domain requested by the Machine.", min=1, max=256),
        "interruptible": BOOLEAN,
        "capacity": string_map("Capacity of the Node, such as cpu and memory."),
    }
)
_MACHINE_STATUS = status(
    {
        "initialization": _PROVISIONED_ONCE,
        "ready": BOOLEAN,
        "addresses": atomic_list(record({"type!": PLAIN, "address!": PLAIN})),
        "failureDomain": PLAIN,
        "interruptible": BOOLEAN,
        "deprecated": deprecated(),
        **FAILURE,
    }
)

_BOOTSTRAP_STATUS = status(
    {
        "initialization": record(
            {"dataSecretCreated": BOOLEAN},
            "Initialization steps that have completed; they are never reset.",
            filled=True,
        ),
        "ready": BOOLEAN,
        "dataSecretName": string(max=253),
        "deprecated": deprecated(),
        **FAILURE,
    }
)

_MACHINE_TEMPLATE = record(
    {
        "metadata": METADATA,
        "spec!": record(
            {
                "infrastructureRef!": REFERENCE,
                "readinessGates": GATES,
                "deletion": MACHINE_DELETION,
                "minReadySeconds": int32("Seconds a Machine must be Ready before it is Available.", min=0),
                "taints": TAINTS,
            }
        ),
    },
    "Template of the control plane's Machines.",
)
_ROLLOUT = record(AFTER, "Machines created before `after` are replaced once that time has passed.", filled=True)


def _control_plane_spec(*, with_replicas: bool) -> Schema:
    """Templates leave replicas and version to the cluster created from them."""
    own: dict[str, Schema] = {"replicas": int32(min=0) | {"default": 1}, "version!": VERSION} if with_replicas else {}
    return record({**own, "machineTemplate!": _MACHINE_TEMPLATE, "rollout": _ROLLOUT})


_CONTROL_PLANE_STATUS = status(
    {
        "initialization": record(
            {"controlPlaneInitialized": BOOLEAN},
            "Initialization steps that have completed; they are never reset.",
            filled=True,
        ),
        "initialized": BOOLEAN,
        "ready": BOOLEAN,
        "selector": SELECTOR_TEXT,
        **REPLICA_COUNTS,
        "updatedReplicas": int32("Same as upToDateReplicas, for contract v1beta1."),
        "unavailableReplicas": int32("For the contract v1beta1."),
        "version": string("Lowest version in use."),
        "versions": atomic_list(record({"version!": PLAIN, "replicas!": int32()}), "Versions in use, lowest first."),
        "deprecated": deprecated(),
        **FAILURE,
    }
)

CRDS: tuple[Object, ...] = (
    _kind(
        kinds.IN_MEMORY_CLUSTER,
        "Simulated infrastructure of a cluster: its API endpoint.",
        INFRASTRUCTURE,
        schema={"spec": _CLUSTER_SPEC, "status": _CLUSTER_STATUS},
        columns=[
            _CLUSTER,
            column("Host", ".spec.controlPlaneEndpoint.host"),
            count("Port", ".spec.controlPlaneEndpoint.port"),
            _PROVISIONED,
            _READY,
            PAUSED,
        ],
        subresources=STATUS,
    ),
    _template(kinds.IN_MEMORY_CLUSTER_TEMPLATE, "InMemoryCluster", INFRASTRUCTURE, _CLUSTER_SPEC),
    _kind(
        kinds.IN_MEMORY_MACHINE,
        "A simulated machine.",
        INFRASTRUCTURE,
        schema={"spec": _MACHINE_SPEC, "status": _MACHINE_STATUS},
        columns=[_CLUSTER, column("Provider ID", ".spec.providerID"), _PROVISIONED, _READY, PAUSED],
    ),
    _template(kinds.IN_MEMORY_MACHINE_TEMPLATE, "InMemoryMachine", INFRASTRUCTURE, _MACHINE_SPEC),
    _kind(
        kinds.IN_MEMORY_BOOTSTRAP,
        "Simulated bootstrap data of a machine.",
        BOOTSTRAP,
        schema={"spec": record({}), "status": _BOOTSTRAP_STATUS},
        columns=[
            _CLUSTER,
            column("Data secret created", ".status.initialization.dataSecretCreated", type="boolean"),
            _READY,
            PAUSED,
        ],
    ),
    _template(kinds.IN_MEMORY_BOOTSTRAP_TEMPLATE, "InMemoryBootstrapConfig", BOOTSTRAP, record({})),
    _kind(
        kinds.IN_MEMORY_CONTROL_PLANE,
        "A simulated control plane: its Machines and kubeconfig.",
        CONTROL_PLANE,
        schema={"spec!": _control_plane_spec(with_replicas=True), "status": _CONTROL_PLANE_STATUS},
        columns=[
            _CLUSTER,
            column("Initialized", ".status.initialization.controlPlaneInitialized", type="boolean"),
            condition_column("Available", "Available"),
            count("Desired", ".spec.replicas"),
            count("Current", ".status.replicas"),
            count("Ready", ".status.readyReplicas"),
            count("Up-to-date", ".status.upToDateReplicas"),
            column("Version", ".spec.version"),
            PAUSED,
        ],
        subresources=scale(),
    ),
    _template(
        kinds.IN_MEMORY_CONTROL_PLANE_TEMPLATE,
        "InMemoryControlPlane",
        CONTROL_PLANE,
        _control_plane_spec(with_replicas=False),
    ),
)
