"""CustomResourceDefinitions of provisioned clusters (rke.cattle.io)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from herder.api.capi.crds.definition import AGE, READY_COLUMNS, STATUS, column, condition_message_column
from herder.api.capi.crds.pieces import CONDITIONS as STANDARD_CONDITIONS
from herder.api.capi.crds.schema import BOOLEAN, OPEN_OBJECT, TIME, Schema, plain_list, record, string, string_map
from herder.api.capi.names import CLUSTER_NAME
from herder.api.definitions import definition, root
from herder.api.rke import kinds
from herder.api.rke.schema.configuration import (
    AUTH_ENDPOINT,
    CONFIGURATION,
    ENVIRONMENT,
    OPERATIONS,
    ROTATE_KEYS,
    S3,
    SNAPSHOT_CREATE,
    SNAPSHOT_RESTORE,
)
from herder.api.rke.schema.pieces import ADDRESSES, CONDITIONS, ENDPOINT, NUMBER, PLAIN, TEXT, initialization_step
from herder.api.rke.schema.pools import USERDATA
from herder.engine.meta.kinds import Kind, Object

INDEXED = {"auth.cattle.io/cluster-indexed": "true"}
_CONTRACT = {**INDEXED, "cluster.x-k8s.io/v1beta1": kinds.VERSION, "cluster.x-k8s.io/v1beta2": kinds.VERSION}
_FAMILY = ("cluster-api",)


def _rke(
    kind: Kind,
    description: str,
    schema: Mapping[str, Schema],
    *,
    columns: Sequence[Object] = (),
    categories: Sequence[str] = _FAMILY,
    short: Sequence[str] = (),
    subresources: Object | None = STATUS,
) -> Object:
    return definition(
        kind,
        root(schema, description),
        columns=columns,
        subresources=subresources,
        labels=_CONTRACT,
        categories=categories,
        short=short,
    )


# --- cluster --------------------------------------------------------------------------------------------------------

CLUSTER_CRD = _rke(
    kinds.RKE_CLUSTER,
    "Infrastructure of a cluster that needs nothing but machines.",
    {
        "spec!": record({"controlPlaneEndpoint": ENDPOINT}),
        "status": record(
            {"ready": BOOLEAN, "initialization": initialization_step("provisioned"), "conditions": CONDITIONS}
        ),
    },
)

_OWN_CLUSTER = column("Cluster", ".metadata.labels['" + CLUSTER_NAME.replace(".", r"\.") + "']")
_CONTROL_PLANE_SPEC = record(
    {
        **CONFIGURATION,
        **OPERATIONS,
        "agentEnvVars": ENVIRONMENT,
        "localClusterAuthEndpoint": AUTH_ENDPOINT,
        "kubernetesVersion": TEXT,
        "clusterName!": string("Name of the Cluster that this object belongs to.", max=63),
        "managementClusterName!": PLAIN,
        "unmanagedConfig": BOOLEAN,
        "controlPlaneEndpoint": ENDPOINT,
    }
)
_CONTROL_PLANE_STATUS = record(
    {
        "ready": BOOLEAN,
        "initialized": BOOLEAN,
        "initialization": initialization_step("controlPlaneInitialized"),
        "observedGeneration": NUMBER,
        "agentConnected": BOOLEAN,
        "appliedSpec": OPEN_OBJECT,
        "appliedDigest": PLAIN,
        "configGeneration": NUMBER,
        "certificateRotationGeneration": NUMBER,
        "rotateEncryptionKeys": ROTATE_KEYS,
        "rotateEncryptionKeysPhase": PLAIN,
        "rotateEncryptionKeysLeader": PLAIN,
        "etcdSnapshotCreate": SNAPSHOT_CREATE,
        "etcdSnapshotCreatePhase": string(enum=["Started", "RestartCluster", "Finished", "Failed"]),
        "etcdSnapshotRestore": SNAPSHOT_RESTORE,
        "etcdSnapshotRestorePhase": string(
            enum=[
                "Started",
                "Shutdown",
                "Restore",
                "PostRestorePodCleanup",
                "InitialRestartCluster",
                "PostRestoreNodeCleanup",
                "RestartCluster",
                "Finished",
                "Failed",
            ]
        ),
        "conditions": CONDITIONS,
    }
)
CONTROL_PLANE_CRD = _rke(
    kinds.CONTROL_PLANE,
    "Kubernetes version and configuration of a cluster, and the progress of its machines.",
    {"spec!": _CONTROL_PLANE_SPEC, "status": _CONTROL_PLANE_STATUS},
    columns=[
        _OWN_CLUSTER,
        column("Initialized", ".status.initialized"),
        column("API Server Available", ".status.initialization.controlPlaneInitialized", type="boolean"),
        AGE,
        column("Version", ".spec.kubernetesVersion"),
        *READY_COLUMNS,
    ],
    short=["rcp"],
)

# --- machines -------------------------------------------------------------------------------------------------------

_BOOTSTRAP = {
    "spec!": record({"clusterName": PLAIN, "userdata": USERDATA}),
    "status": record(
        {
            "ready": BOOLEAN,
            "dataSecretName": string(min=1, max=253),
            "initialization": initialization_step("dataSecretCreated"),
            "conditions": CONDITIONS,
        }
    ),
}
BOOTSTRAP_CRD = _rke(
    kinds.BOOTSTRAP,
    "Bootstrap data of a machine: installs the agent that fetches the plan.",
    _BOOTSTRAP,
    columns=[
        _OWN_CLUSTER,
        column("Data Created", ".status.initialization.dataSecretCreated", type="boolean"),
        condition_message_column("Reason", "Ready"),
        AGE,
    ],
)

_METADATA = record(
    {
        "name": PLAIN,
        "namespace": PLAIN,
        "labels": string_map(),
        "annotations": string_map(),
        "finalizers": plain_list(PLAIN),
    }
)
BOOTSTRAP_TEMPLATE_CRD = _rke(
    kinds.BOOTSTRAP_TEMPLATE,
    "Template of RKEBootstraps.",
    {
        "spec!": record(
            {
                "clusterName": PLAIN,
                "template!": record({"apiVersion": PLAIN, "kind": PLAIN, "metadata": _METADATA, **_BOOTSTRAP}),
            }
        )
    },
    subresources=None,
)

CUSTOM_MACHINE_CRD = _rke(
    kinds.CUSTOM_MACHINE,
    "A machine that a user created and registered (custom cluster).",
    {
        "spec": record({"providerID": TEXT}),
        "status": record(
            {
                "ready": BOOLEAN,
                "initialization": initialization_step("provisioned"),
                "addresses": ADDRESSES,
                "conditions": CONDITIONS,
            }
        ),
    },
    columns=[_OWN_CLUSTER, *READY_COLUMNS, AGE, column("ProviderID", ".spec.providerID", wide=True)],
    categories=(),
)

# --- snapshots and beacons ------------------------------------------------------------------------------------------

ETCD_SNAPSHOT_CRD = _rke(
    kinds.ETCD_SNAPSHOT,
    "An etcd snapshot, on a machine or in S3.",
    {
        "spec": record({"clusterName": PLAIN}),
        "snapshotFile": record(
            {
                "name": PLAIN,
                "nodeName": PLAIN,
                "location": PLAIN,
                "metadata": string("base64(JSON map) of the cluster's spec at the time of the snapshot."),
                "createdAt": TIME,
                "size": NUMBER,
                "s3": S3,
                "status": PLAIN,
                "message": PLAIN,
            }
        ),
        "status": record({"missing": BOOLEAN}),
    },
    categories=(),
)

BEACON_CRD = definition(
    kinds.BEACON,
    root(
        {
            "spec": record({}),
            "status": record(
                {
                    "active": BOOLEAN,
                    "registrationEndpoint": PLAIN,
                    "owner": PLAIN,
                    "delegates": plain_list(PLAIN),
                    "conditions": STANDARD_CONDITIONS,
                }
            ),
        },
        "Records which controller may write the plans of a cluster's machines.",
    ),
    columns=[column("Active", ".status.active"), column("Registration Endpoint", ".status.registrationEndpoint")],
    subresources=STATUS,
    labels=INDEXED,
    categories=["planning"],
)

CRDS = (
    CLUSTER_CRD,
    CONTROL_PLANE_CRD,
    BOOTSTRAP_CRD,
    BOOTSTRAP_TEMPLATE_CRD,
    CUSTOM_MACHINE_CRD,
    ETCD_SNAPSHOT_CRD,
    BEACON_CRD,
)
