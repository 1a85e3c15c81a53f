"""Labels, annotations, Secret types and names of provisioned clusters (rke.cattle.io)."""

from __future__ import annotations

import hashlib

from herder.api.machines.names import granted_role, safe_concat

PREFIX = "rke.cattle.io/"

# --- Secrets --------------------------------------------------------------------------------------------------------

PLAN_SECRET_TYPE = f"{PREFIX}machine-plan"
BOOTSTRAP_SECRET_TYPE = f"{PREFIX}bootstrap"
TOKENS_SECRET_TYPE = f"{PREFIX}cluster-state"  # join tokens
KEYS_SECRET_TYPE = f"{PREFIX}encryption-keys"  # keys that encrypt Secrets of a cluster
REQUEST_SECRET_TYPE = f"{PREFIX}machine-request"  # registration request of a custom machine
AUTH_SECRET_TYPE = f"{PREFIX}auth-config"  # registry credentials

# --- images ---------------------------------------------------------------------------------------------------------

KUBEADM_INSTALLER = "herder/system-agent-installer-kubeadm"

# --- labels ---------------------------------------------------------------------------------------------------------

CLUSTER_NAME = f"{PREFIX}cluster-name"
MACHINE_NAME = f"{PREFIX}machine-name"
MACHINE_NAMESPACE = f"{PREFIX}machine-namespace"
MACHINE_ID = f"{PREFIX}machine-id"  # the machine's own ID
NODE_NAME = f"{PREFIX}node-name"
ETCD_ROLE = f"{PREFIX}etcd-role"
CONTROL_PLANE_ROLE = f"{PREFIX}control-plane-role"
WORKER_ROLE = f"{PREFIX}worker-role"
ROLES = (ETCD_ROLE, CONTROL_PLANE_ROLE, WORKER_ROLE)
MACHINE_UID = f"{PREFIX}machine"  # on the Node in the workload cluster; links it to its Machine
KUBEADM_PROVIDER = "kubeadm://"  # prefix of the Machine UID in the provider ID of Nodes of kubeadm clusters
POOL_NAME = f"{PREFIX}rke-machine-pool-name"
TEMPLATE_HASH = f"{PREFIX}machine-template-hash"
ACCOUNT_ROLE = f"{PREFIX}service-account-role"
ACCOUNT_FOR_PLAN, ACCOUNT_FOR_BOOTSTRAP = "plan", "bootstrap"
PLAN_SECRET_NAME = f"{PREFIX}plan-secret-name"
BOOTSTRAP_NAME = f"{PREFIX}rkebootstrap-name"
INIT_NODE = f"{PREFIX}init-node"
INIT_NODE_MACHINE_ID = f"{PREFIX}init-node-machine-id"
OPERATING_SYSTEM = "cattle.io/os"
LINUX, WINDOWS = "linux", "windows"
REQUEST_FOR = f"{PREFIX}machine-request"  # on a registration request: the management Cluster
ACCOUNT_NAME = "cattle.io/service-account.name"  # on the Secret with a service account token

# On every plan Secret: its cluster and machine. The namespace is that of the Secret.
PLAN_CLUSTER_GROUP, PLAN_MACHINE_GROUP = "plan.cattle.io/cluster-group", "plan.cattle.io/machine-group"
PLAN_CLUSTER_KIND, PLAN_MACHINE_KIND = "plan.cattle.io/cluster-kind", "plan.cattle.io/machine-kind"
PLAN_CLUSTER_NAME, PLAN_MACHINE_NAME = "plan.cattle.io/cluster-name", "plan.cattle.io/machine-name"

# --- annotations ----------------------------------------------------------------------------------------------------

LABELS, TAINTS = f"{PREFIX}labels", f"{PREFIX}taints"  # JSON, for the Node
# JSON: taints that the Node has only until its Machine is known
REGISTER_WITH = "bootstrap.herder.io/register-with-taints"
ADDRESS, INTERNAL_ADDRESS = f"{PREFIX}address", f"{PREFIX}internal-address"
JOIN_URL, JOINED_TO = f"{PREFIX}join-url", f"{PREFIX}joined-to"
JOIN_URL_BY_HAND = f"{PREFIX}join-url-autoset-disabled"
PLAN_UPDATED, PROBES_PASSED = f"{PREFIX}plan-last-updated", f"{PREFIX}plan-probes-passed"
DRAIN_OPTIONS, DRAIN_DONE, DRAIN_ERROR = f"{PREFIX}drain-options", f"{PREFIX}drain-done", f"{PREFIX}drain-error"
DRAIN_STARTED = "plan.herder.io/drain-started"
PRE_DRAIN, POST_DRAIN, UNCORDON = f"{PREFIX}pre-drain", f"{PREFIX}post-drain", f"{PREFIX}uncordon"
CLUSTER_SPEC = f"{PREFIX}cluster-spec"  # base64(gzip(JSON)) of the provisioning Cluster's spec
ETCD_FORCE_REMOVE = f"{PREFIX}etcd-force-remove"
DELETE_MISSING_AFTER = f"{PREFIX}delete-missing-custom-machines-after"
AUTHORIZED_CLUSTERS = f"{PREFIX}object-authorized-for-clusters"
CLONED_FROM_VERSION = f"{PREFIX}cloned-from-group-version"
CLONED_FROM_KIND = f"{PREFIX}cloned-from-kind"
CLONED_FROM_NAME = f"{PREFIX}cloned-from-name"
BOOTSTRAP_TOKEN = f"{PREFIX}bootstrap-token"  # on the token Secret of a bootstrap service account
LAST_ACCESS = f"{PREFIX}last-access-timestamp"
TOKEN_INVALIDATED = f"{PREFIX}bootstrap-token-invalidated"
ACCOUNT_TOKEN = "rancher.io/service-account.secret-ref"  # on a ServiceAccount: namespace/name of its token Secret
PLAN_INPUTS = "plan.herder.io/inputs"  # on a plan Secret: digests of the plan and of its inputs
ALLOW_VERSION_SKIP = "plan.herder.io/allow-version-skip"  # on a Cluster: the one version that may skip minor versions
PLAN_ATTEMPTS = "plan.herder.io/attempts"  # how often this plan was issued, including the first time
SNAPSHOT_NAME = "etcdsnapshot.rke.io/snapshot-name"
SNAPSHOT_FILE = "etcdsnapshot.rke.io/snapshot-file-name"
SNAPSHOT_STORAGE = "etcdsnapshot.rke.io/storage"
SNAPSHOT_SHA256 = "etcdsnapshot.herder.io/sha256"
SNAPSHOT_AUTHORITIES = "etcdsnapshot.herder.io/certificate-authorities"  # SHA-256 of the CAs that the snapshot contains
RESTORE_MODES = "etcdsnapshot.rke.io/restore-mode-options"
ABORT_OPERATION = "operation.herder.io/abort"  # on a Cluster: the ID of the operation to abort
NO_UPGRADE_SNAPSHOT = "operation.herder.io/no-snapshot-before-upgrade"  # on a Cluster: "true" to upgrade without one
PREVIOUS_SPEC = "operation.herder.io/previous-cluster-spec"  # on a control plane: CLUSTER_SPEC before the last version
PLAN_TASK = "plan.herder.io/task"  # on a plan Secret: operation, phase and attempt that its plan is a task of
PLAN_APPLIED = "PlanApplied"  # condition of a Machine: whether its plan was applied, and why not
CERTIFICATES = "plan.herder.io/certificates"  # JSON, on a Machine: its certificates and when they expire
PLAN_FAILED = "plan.herder.io/failed"  # when the failure was first observed
RENDERED_FROM = "bootstrap.herder.io/rendered-from"  # on a bootstrap Secret: digest of all inputs of the script
REQUEST_PROBLEM = "bootstrap.herder.io/problem"  # on a registration request: why it was rejected

ADMINISTRATED = "provisioning.cattle.io/administrated"  # on a management Cluster that is provisioned here
RKE2_PRIME = "provisioning.cattle.io/rke2-prime-enabled"
COPIED_TO_CONTROL_PLANE = (RKE2_PRIME, ALLOW_VERSION_SKIP, ABORT_OPERATION, NO_UPGRADE_SNAPSHOT)
"""Annotations of a Cluster that its control plane gets."""
REMOVED_NODE = "kubeadm.herder.io/removed"
"""Label of the record of a node name in a kubeadm cluster: the Machine was deleted, so it gets no certificate."""
MARKED_AS_REMOVED = "kubeadm.herder.io/marked-as-removed"
"""Annotation of a Machine that is being deleted: the record of its Node has that label."""
ETCD_HOOK = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/rke-bootstrap-cleanup"
ETCD_HOOK_OWNER = "rke-bootstrap-controller"
AGENT_HOOK = "pre-drain.delete.hook.machine.cluster.x-k8s.io/cluster-agent"

PLANNER = "planner"  # owner of a Beacon while the planner has plans to write
MAKE_TOKENS = "cluster-tokens"  # effect: generate the join tokens
MAKE_AUTHORITIES = "cluster-authorities"  # effect: generate the certificate authorities of a cluster
READ_OBJECT = "read-object"  # effect: read a Secret or ConfigMap that a plan includes
MAKE_BOOTSTRAP_DATA = "bootstrap-data"  # effect: render an install script with its token
READ_REQUEST = "machine-request"  # effect: read the data of a registration request

# --- finalizers -----------------------------------------------------------------------------------------------------

REMOVE_CLUSTER = "wrangler.cattle.io/rke-cluster-remove"
REMOVE_CONTROL_PLANE = "wrangler.cattle.io/rke-control-plane-remove"
REMOVE_BOOTSTRAP = "wrangler.cattle.io/rke-bootstrap-etcd-removal"
REMOVE_CUSTOM_MACHINE = "wrangler.cattle.io/unmanaged-machine"


PLAN_ROLE = "machine-plan"
"""Suffix of the Roles that let nodes read their plan."""


def plan_secret(bootstrap: str) -> str:
    """Name of the plan Secret, and of the ServiceAccount of the node that reads it."""
    return safe_concat(bootstrap, "machine", "plan")


def plan_role(bootstrap: str) -> str:
    """Name of the Role and RoleBinding for the plan Secret."""
    return granted_role(PLAN_ROLE, bootstrap)


def bootstrap_secret(bootstrap: str) -> str:
    """Name of the Secret with the install script, and of the ServiceAccount whose token it contains."""
    return safe_concat(bootstrap, "machine", "bootstrap")


def account_token(account: str) -> str:
    """Name of the Secret with the token of a node's ServiceAccount."""
    return safe_concat(account, "token")


def tokens_secret(control_plane: str) -> str:
    return safe_concat(control_plane, "rke", "state")


def authority_secret(cluster: str, purpose: str) -> str:
    """Name of the Secret of a certificate authority: `ca`, `etcd`, `sa` or `proxy`, as in Cluster API."""
    return f"{cluster}-{purpose}"


def bootstrap_template(cluster: str) -> str:
    return safe_concat(cluster, "bootstrap", "template")


def machine_deployment(cluster: str, pool: str) -> str:
    """Name of a pool's MachineDeployment and MachineHealthCheck."""
    return safe_concat(cluster, pool)


def custom_machine(machine_id: str) -> str:
    """Name of a registration request, and of the Machine, RKEBootstrap and CustomMachine created from it."""
    return f"custom-{hashlib.sha256(machine_id.encode()).hexdigest()[:12]}"
