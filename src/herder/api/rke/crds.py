"""CustomResourceDefinitions of provisioned clusters (rke.cattle.io)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from herder.api.capi.crds.definition import (
    AGE,
    READY_COLUMNS,
    STATUS,
    column,
    condition_column,
    condition_message_column,
)
from herder.api.capi.crds.pieces import CONDITIONS as STANDARD_CONDITIONS
from herder.api.capi.crds.schema import (
    OPEN_OBJECT,
    TIME,
    Schema,
    plain_list,
    record,
    string,
    string_map,
    with_description,
)
from herder.api.capi.names import CLUSTER_NAME
from herder.api.definitions import definition, root
from herder.api.rke import kinds
from herder.api.rke.schema.configuration import (
    AUTH_ENDPOINT,
    CONFIGURATION,
    ENVIRONMENT,
    OPERATIONS,
    ROTATE_CERTIFICATES,
    ROTATE_KEYS,
    S3,
    SNAPSHOT_CREATE,
    SNAPSHOT_RESTORE,
)
from herder.api.rke.schema.pieces import (
    ADDRESSES,
    CONDITIONS,
    ENDPOINT,
    OBSERVED_GENERATION,
    PLAIN,
    flag,
    initialization_step,
    number,
    text,
)
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
        "spec!": record({"controlPlaneEndpoint": ENDPOINT}, "Desired state."),
        "status": record(
            {
                "ready": flag("Same as initialization.provisioned, for clients of v1beta1."),
                "initialization": initialization_step("provisioned", "Whether machines can be created."),
                "conditions": CONDITIONS,
            },
            "Observed state.",
        ),
    },
)

_OWN_CLUSTER = column("Cluster", ".metadata.labels['" + CLUSTER_NAME.replace(".", r"\.") + "']")
_CONTROL_PLANE_SPEC = record(
    {
        **CONFIGURATION,
        **OPERATIONS,
        "agentEnvVars": ENVIRONMENT,
        "redeploySystemAgentGeneration": number("Increment to redeploy the node agents of all machines."),
        "localClusterAuthEndpoint": AUTH_ENDPOINT,
        "kubernetesVersion": text("Kubernetes version with its distribution, such as v1.34.1+k3s1."),
        "clusterName!": string("Name of the Cluster that this object belongs to.", max=63),
        "managementClusterName!": string("Name of the management Cluster."),
        "unmanagedConfig": flag("Whether users configure the distribution on the machines themselves."),
        "controlPlaneEndpoint": ENDPOINT,
    },
    "Desired state, generated from the provisioning Cluster.",
)
OPERATION = record(
    {
        "id": string("Identifies the run; part of the plans of its tasks."),
        "kind": string(
            "Field of the spec that requested it; etcdSnapshotSchedule and etcdSnapshotDelete are automatic."
        ),
        "generation": number("Generation of the request."),
        "phase": string("Current phase; Finished, Done or Failed if it has ended."),
        "attempt": number("Attempt at the phase."),
        "leader": string("Machine that acts for the others."),
        "startedAt": with_description(TIME, "When it was started."),
        "deadline": with_description(TIME, "When the phase fails unless it is done."),
        "message": string("Why it failed."),
        "retryAt": with_description(TIME, "When the attempt begins, if an earlier one has failed."),
        "retryReason": string("Why the earlier attempt failed."),
        "phaseStartedAt": with_description(TIME, "When the phase was started."),
        "timings": {
            "type": "object",
            "additionalProperties": number("Seconds."),
            "description": "Seconds that each finished phase took.",
        },
        "inverse": string_map("Request that undoes the operation, or a message that says why none does."),
        "machines": plain_list(PLAIN, "Machines that the phase waits for; at most ten."),
        "skipped": plain_list(PLAIN, "Workers that did not respond, or failed, and keep what they have."),
        "suspendedAt": with_description(TIME, "Since when it waits, such as for the end of a pause of the cluster."),
        "resumedAt": with_description(TIME, "When it continued after that; deadlines count from then on."),
    },
    "The operation in progress, or the last one.",
)
_ENDED_OPERATION = record(
    {
        "id": string("Identifies the run."),
        "kind": string("Field of the spec that requested it."),
        "generation": number("Generation of the request."),
        "phase": string("Finished, Done or Failed."),
        "leader": string("Machine that acted for the others."),
        "startedAt": with_description(TIME, "When it was started."),
        "endedAt": with_description(TIME, "When it has ended."),
        "message": string("Why it failed."),
        "timings": {
            "type": "object",
            "additionalProperties": number("Seconds."),
            "description": "Seconds that each phase took.",
        },
        "skipped": plain_list(PLAIN, "Workers that did not respond, or failed, and keep what they have."),
        "inverse": string_map("Request that undoes the operation, or a message that says why none does."),
    }
)
_ROLLBACK = record(
    {
        "from": string("Version before the change."),
        "to": string("Version after the change."),
        "snapshot": string("Snapshot that was taken before the change; empty if none was."),
        "snapshotTime": string("Time of the snapshot. Changes of the cluster since are lost in a rollback."),
        "snapshotSHA256": string("SHA-256 that its server reported. Only a snapshot with this hash is restored."),
        "result": string("Whether the snapshot was taken.", enum=["Saved", "Skipped", "Failed"]),
        "message": string("Why the change cannot be undone."),
        "time": with_description(TIME, "When the change was started."),
    },
    "The last change of the version, and how it is undone.",
)
ENCRYPTION_KEYS = record(
    {
        "loaded": plain_list(number("Generation of a key."), "Keys that servers load; the first encrypts."),
        "stored": plain_list(number("Generation of a key."), "Keys that exist, also for snapshots that need them."),
        "rotation": string("The last operation that added a key."),
    },
    "Keys that encrypt Secrets of the cluster, where the manager owns them.",
)
_CONTROL_PLANE_STATUS = record(
    {
        "ready": flag("Whether the control plane is initialized, for clients of v1beta1."),
        "initialized": flag("Whether the API server of the cluster is available."),
        "initialization": initialization_step("controlPlaneInitialized", "Whether the API server accepts requests."),
        "observedGeneration": OBSERVED_GENERATION,
        "agentConnected": flag("Whether the cluster agent is connected."),
        "appliedSpec": with_description(OPEN_OBJECT, "Last spec applied on all machines, without secrets."),
        "appliedDigest": string("Digest of the last spec that was applied on all machines."),
        "configGeneration": number("Generation of the configuration of servers."),
        "rotateCertificates": with_description(ROTATE_CERTIFICATES, "The last certificate rotation."),
        "certificateRotationGeneration": number("Generation of the last certificate rotation that succeeded."),
        "rotateEncryptionKeys": with_description(ROTATE_KEYS, "The key rotation in progress, or the last one."),
        "rotateEncryptionKeysPhase": string("Phase of the key rotation."),
        "rotateEncryptionKeysLeader": string("Machine that performs the key rotation."),
        "encryptionKeys": ENCRYPTION_KEYS,
        "redeploySystemAgentGeneration": number("Generation of the last redeployment of node agents."),
        "etcdSnapshotCreate": with_description(SNAPSHOT_CREATE, "The snapshot in progress, or the last one."),
        "etcdSnapshotCreatePhase": string(
            "Phase of the snapshot.", enum=["Started", "RestartCluster", "Finished", "Failed"]
        ),
        "etcdSnapshotRestore": with_description(SNAPSHOT_RESTORE, "The restore in progress, or the last one."),
        "etcdSnapshotRestorePhase": string(
            "Phase of the restore.",
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
            ],
        ),
        "snapshotSchedule": record(
            {
                "schedule": string("The schedule that is carried out."),
                "lastScheduleTime": with_description(TIME, "When the last scheduled snapshot was started."),
            },
            "Progress of the snapshot schedule, on distributions whose schedule the manager carries out.",
        ),
        "operation": OPERATION,
        "operationHistory": plain_list(
            _ENDED_OPERATION, "The last operations, oldest first; at most ten, with the last restore."
        ),
        "unjoinedServers": plain_list(
            PLAIN, "Servers that a failed restore has stopped, and that have not started again."
        ),
        "rollback": _ROLLBACK,
        "specHistory": plain_list(PLAIN, "Digests of the specs that the cluster has had; the last is the current one."),
        "approvedObjects": plain_list(
            PLAIN, "UIDs of the objects that specs of the cluster were allowed to reference, oldest first."
        ),
        "conditions": CONDITIONS,
    },
    "Observed state.",
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
        column("Operation", ".status.operation.kind"),
        column("Phase", ".status.operation.phase"),
        condition_column("Agents Up To Date", "NodeAgentsUpToDate", wide=True),
        *READY_COLUMNS,
    ],
    short=["rcp"],
)

# --- machines -------------------------------------------------------------------------------------------------------

_BOOTSTRAP = {
    "spec!": record(
        {"clusterName": string("Name of the Cluster that the machine belongs to."), "userdata": USERDATA},
        "Desired state.",
    ),
    "status": record(
        {
            "ready": flag("Same as initialization.dataSecretCreated, for clients of v1beta1."),
            "dataSecretName": string("Secret with the bootstrap data.", min=1, max=253),
            "initialization": initialization_step("dataSecretCreated", "Whether the bootstrap data exists."),
            "conditions": CONDITIONS,
        },
        "Observed state.",
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
        "name": string("Not used: created objects have the name of their Machine."),
        "namespace": string("Not used: created objects are in the namespace of the template."),
        "labels": string_map("Labels of the created objects."),
        "annotations": string_map("Annotations of the created objects."),
        "finalizers": plain_list(PLAIN, "Not used."),
    },
    "Metadata of the created objects.",
)
BOOTSTRAP_TEMPLATE_CRD = _rke(
    kinds.BOOTSTRAP_TEMPLATE,
    "Template of RKEBootstraps.",
    {
        "spec!": record(
            {
                "clusterName": string("Name of the Cluster that the template belongs to."),
                "template!": record(
                    {
                        "apiVersion": string("Not used: created objects have the API version of the template."),
                        "kind": string("Not used: created objects are RKEBootstraps."),
                        "metadata": _METADATA,
                        **_BOOTSTRAP,
                    },
                    "The RKEBootstrap to create for each Machine.",
                ),
            },
            "Desired state.",
        )
    },
    subresources=None,
)

CUSTOM_MACHINE_CRD = _rke(
    kinds.CUSTOM_MACHINE,
    "A machine that a user created and registered (custom cluster).",
    {
        "spec": record(
            {"providerID": text("Identifier of the machine; equal to the Node's providerID.")}, "Desired state."
        ),
        "status": record(
            {
                "ready": flag("Whether the machine is registered, for clients of v1beta1."),
                "initialization": initialization_step("provisioned", "Whether the machine has a provider ID."),
                "addresses": ADDRESSES,
                "conditions": CONDITIONS,
            },
            "Observed state.",
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
        "spec": record({"clusterName": string("Name of the Cluster that the snapshot is of.")}, "Desired state."),
        "snapshotFile": record(
            {
                "name": string("Name of the file."),
                "nodeName": string("Node that took the snapshot; s3 if it is in a bucket."),
                "location": string("URL of the file."),
                "metadata": string("Base64 of a JSON map with the cluster's spec at the time of the snapshot."),
                "createdAt": with_description(TIME, "When the snapshot was taken."),
                "size": number("Size of the file in bytes."),
                "s3": S3,
                "status": string("Result of the snapshot."),
                "message": string("Why the snapshot failed."),
            },
            "The file of the snapshot.",
        ),
        "status": record({"missing": flag("Whether the file no longer exists.")}, "Observed state."),
    },
    categories=(),
)

BEACON_CRD = definition(
    kinds.BEACON,
    root(
        {
            "spec": record({}, "Always empty."),
            "status": record(
                {
                    "active": flag("Whether plans may be written."),
                    "registrationEndpoint": string("Where machines register."),
                    "owner": string("Controller that may write plans."),
                    "delegates": plain_list(PLAIN, "Controllers that the owner lets write plans."),
                    "conditions": STANDARD_CONDITIONS,
                },
                "Observed state.",
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
