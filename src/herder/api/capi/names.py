"""Labels, annotations, finalizers and Secret names of Cluster API."""

from __future__ import annotations

from herder.engine.meta.kinds import Object

# Labels.
CLUSTER_NAME = "cluster.x-k8s.io/cluster-name"
SET_NAME = "cluster.x-k8s.io/set-name"
DEPLOYMENT_NAME = "cluster.x-k8s.io/deployment-name"
POOL_NAME = "cluster.x-k8s.io/pool-name"
CONTROL_PLANE = "cluster.x-k8s.io/control-plane"
CONTROL_PLANE_NAME = "cluster.x-k8s.io/control-plane-name"
PROVIDER = "cluster.x-k8s.io/provider"
WATCH_FILTER = "cluster.x-k8s.io/watch-filter"
INTERRUPTIBLE = "cluster.x-k8s.io/interruptible"
TEMPLATE_HASH = "machine-template-hash"
TOPOLOGY_OWNED = "topology.cluster.x-k8s.io/owned"
DRAIN = "cluster.x-k8s.io/drain"

# Annotations that users and providers set.
PAUSED = "cluster.x-k8s.io/paused"
MANAGED_BY = "cluster.x-k8s.io/managed-by"
DISABLE_MACHINE_CREATE = "cluster.x-k8s.io/disable-machine-create"
DELETE_MACHINE = "cluster.x-k8s.io/delete-machine"
SKIP_REMEDIATION = "cluster.x-k8s.io/skip-remediation"
REMEDIATE_MACHINE = "cluster.x-k8s.io/remediate-machine"
SKIP_PREFLIGHT_CHECKS = "machineset.cluster.x-k8s.io/skip-preflight-checks"
EXCLUDE_NODE_DRAINING = "machine.cluster.x-k8s.io/exclude-node-draining"
EXCLUDE_WAIT_FOR_VOLUME_DETACH = "machine.cluster.x-k8s.io/exclude-wait-for-node-volume-detach"
CERTIFICATES_EXPIRY = "machine.cluster.x-k8s.io/certificates-expiry"
PRE_DRAIN_HOOK = "pre-drain.delete.hook.machine.cluster.x-k8s.io"
PRE_TERMINATE_HOOK = "pre-terminate.delete.hook.machine.cluster.x-k8s.io"
AUTOSCALER_MIN = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size"
AUTOSCALER_MAX = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size"
REPLICAS_MANAGED_BY = "cluster.x-k8s.io/replicas-managed-by"
CONVERSION_DATA = "cluster.x-k8s.io/conversion-data"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

# Annotations that the core sets.
CLONED_FROM_NAME = "cluster.x-k8s.io/cloned-from-name"
CLONED_FROM_GROUP_KIND = "cluster.x-k8s.io/cloned-from-groupkind"
REVISION = "machinedeployment.clusters.x-k8s.io/revision"
DESIRED_REPLICAS = "machinedeployment.clusters.x-k8s.io/desired-replicas"
MAX_REPLICAS = "machinedeployment.clusters.x-k8s.io/max-replicas"
NODE_DELETION_STARTED = "machine.herder.io/node-deletion-started"
REMEDIATION_PACE = "machinehealthcheck.herder.io/remediation-pace"

# On nodes of workload clusters.
NODE_CLUSTER_NAME = "cluster.x-k8s.io/cluster-name"
NODE_CLUSTER_NAMESPACE = "cluster.x-k8s.io/cluster-namespace"
NODE_MACHINE = "cluster.x-k8s.io/machine"
NODE_OWNER_KIND = "cluster.x-k8s.io/owner-kind"
NODE_OWNER_NAME = "cluster.x-k8s.io/owner-name"
LABELS_FROM_MACHINE = "cluster.x-k8s.io/labels-from-machine"
ANNOTATIONS_FROM_MACHINE = "cluster.x-k8s.io/annotations-from-machine"
TAINTS_FROM_MACHINE = "cluster.x-k8s.io/taints-from-machine"
UNINITIALIZED_TAINT = "node.cluster.x-k8s.io/uninitialized"
OUTDATED_REVISION_TAINT = "node.cluster.x-k8s.io/outdated-revision"

# Finalizers.
CLUSTER_FINALIZER = "cluster.cluster.x-k8s.io"
MACHINE_FINALIZER = "machine.cluster.x-k8s.io"
MACHINE_SET_FINALIZER = "cluster.x-k8s.io/machineset"
MACHINE_DEPLOYMENT_FINALIZER = "cluster.x-k8s.io/machinedeployment"

SECRET_TYPE = "cluster.x-k8s.io/secret"

# Annotations of our own. "true" on a Cluster that is being deleted: do not wait for the infrastructure object, which
# may then leak its resources. For infrastructure that can no longer be deleted.
ABANDON_INFRASTRUCTURE = "cluster.herder.io/abandon-infrastructure"
# On kubeconfig Secrets created by the core: when the client certificate expires, and when it is renewed.
CERTIFICATE_EXPIRY = "cluster.herder.io/certificate-expiry"
CERTIFICATE_RENEWAL = "cluster.herder.io/certificate-renewal"
# On Machines of MachineSets: the labels and annotations that come from the template ("labels;annotations").
PROPAGATED = "cluster.herder.io/propagated"
# On Machines: labels and taints set on the Node that a kubelet may not change itself.
BROUGHT_TO_NODE = "cluster.herder.io/brought-to-node"
# On MachineSets: the spec.rollout.after that the MachineSet was created for, independent of the server's clock.
ROLLOUT_AFTER = "cluster.herder.io/rollout-after"


def cluster_key(namespace: str, name: str) -> str:
    """Return the name of a workload cluster as the target of writes and observations."""
    return f"{namespace}/{name}"


def key_of_cluster(obj: Object) -> str:
    """Return the key of a Cluster, or of an object that has the name of its Cluster."""
    return cluster_key(obj["metadata"]["namespace"], obj["metadata"]["name"])


def kubeconfig_secret(cluster: str) -> str:
    return f"{cluster}-kubeconfig"


def authority_secret(cluster: str) -> str:
    """Return the name of the Secret with the cluster CA (tls.crt and tls.key)."""
    return f"{cluster}-ca"


def labels_of(obj: Object) -> dict[str, str]:
    labels: dict[str, str] | None = obj["metadata"].get("labels")
    return labels or {}


def annotations_of(obj: Object) -> dict[str, str]:
    annotations: dict[str, str] | None = obj["metadata"].get("annotations")
    return annotations or {}


def is_deleting(obj: Object) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def is_paused(cluster: Object | None, obj: Object) -> bool:
    """Whether the Cluster is paused, or the object has the paused annotation with any value."""
    return bool(cluster and (cluster.get("spec") or {}).get("paused")) or PAUSED in annotations_of(obj)
