"""Names that provisioned clusters, their nodes and other programs agree on, each in one place."""

from __future__ import annotations

import hashlib

from herder.api.machines.names import safe_concat

PREFIX = "rke.cattle.io/"

# --- Secrets --------------------------------------------------------------------------------------------------------

PLAN_SECRET_TYPE = f"{PREFIX}machine-plan"
BOOTSTRAP_SECRET_TYPE = f"{PREFIX}bootstrap"
TOKENS_SECRET_TYPE = f"{PREFIX}cluster-state"  # what machines join with
REQUEST_SECRET_TYPE = f"{PREFIX}machine-request"  # a machine that somebody else made asks to be taken in
AUTH_SECRET_TYPE = f"{PREFIX}auth-config"  # how a registry is logged in to

# --- images ---------------------------------------------------------------------------------------------------------

KUBEADM_INSTALLER = "herder/system-agent-installer-kubeadm"

# --- labels ---------------------------------------------------------------------------------------------------------

CLUSTER_NAME = f"{PREFIX}cluster-name"
MACHINE_NAME = f"{PREFIX}machine-name"
MACHINE_NAMESPACE = f"{PREFIX}machine-namespace"
MACHINE_ID = f"{PREFIX}machine-id"  # what the machine calls itself
NODE_NAME = f"{PREFIX}node-name"
ETCD_ROLE = f"{PREFIX}etcd-role"
CONTROL_PLANE_ROLE = f"{PREFIX}control-plane-role"
WORKER_ROLE = f"{PREFIX}worker-role"
ROLES = (ETCD_ROLE, CONTROL_PLANE_ROLE, WORKER_ROLE)
MACHINE_UID = f"{PREFIX}machine"  # on the Node downstream: by it a Machine and its Node find each other
KUBEADM_PROVIDER = "kubeadm://"  # before that UID, in the provider ID of a Node of a kubeadm cluster
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
REQUEST_FOR = f"{PREFIX}machine-request"  # on a machine's request to be taken in: the management Cluster
ACCOUNT_NAME = "cattle.io/service-account.name"  # on the Secret with an account's token

# Of every plan Secret: which cluster and which machine it is of. No namespace: it is the Secret's own.
PLAN_CLUSTER_GROUP, PLAN_MACHINE_GROUP = "plan.cattle.io/cluster-group", "plan.cattle.io/machine-group"
PLAN_CLUSTER_KIND, PLAN_MACHINE_KIND = "plan.cattle.io/cluster-kind", "plan.cattle.io/machine-kind"
PLAN_CLUSTER_NAME, PLAN_MACHINE_NAME = "plan.cattle.io/cluster-name", "plan.cattle.io/machine-name"

# --- annotations ----------------------------------------------------------------------------------------------------

LABELS, TAINTS = f"{PREFIX}labels", f"{PREFIX}taints"  # JSON, for the Node
REGISTER_WITH = "bootstrap.herder.io/register-with-taints"  # JSON: those that a Node has only until it is known here
ADDRESS, INTERNAL_ADDRESS = f"{PREFIX}address", f"{PREFIX}internal-address"
JOIN_URL, JOINED_TO = f"{PREFIX}join-url", f"{PREFIX}joined-to"
JOIN_URL_BY_HAND = f"{PREFIX}join-url-autoset-disabled"
PLAN_UPDATED, PROBES_PASSED = f"{PREFIX}plan-last-updated", f"{PREFIX}plan-probes-passed"
DRAIN_OPTIONS, DRAIN_DONE, DRAIN_ERROR = f"{PREFIX}drain-options", f"{PREFIX}drain-done", f"{PREFIX}drain-error"
PRE_DRAIN, POST_DRAIN, UNCORDON = f"{PREFIX}pre-drain", f"{PREFIX}post-drain", f"{PREFIX}uncordon"
CLUSTER_SPEC = f"{PREFIX}cluster-spec"  # base64(gzip(JSON)) of the provisioning Cluster's spec
ETCD_FORCE_REMOVE = f"{PREFIX}etcd-force-remove"
DELETE_MISSING_AFTER = f"{PREFIX}delete-missing-custom-machines-after"
AUTHORIZED_CLUSTERS = f"{PREFIX}object-authorized-for-clusters"
CLONED_FROM_VERSION = f"{PREFIX}cloned-from-group-version"
CLONED_FROM_KIND = f"{PREFIX}cloned-from-kind"
CLONED_FROM_NAME = f"{PREFIX}cloned-from-name"
BOOTSTRAP_TOKEN = f"{PREFIX}bootstrap-token"  # on the token Secret of a bootstrap account
LAST_ACCESS = f"{PREFIX}last-access-timestamp"
TOKEN_INVALIDATED = f"{PREFIX}bootstrap-token-invalidated"
ACCOUNT_TOKEN = "rancher.io/service-account.secret-ref"  # on a ServiceAccount: namespace/name of its token's Secret
PLAN_INPUTS = "plan.herder.io/inputs"  # on a plan Secret: digests of what the plan was rendered from, and of the plan
ALLOW_VERSION_SKIP = "plan.herder.io/allow-version-skip"  # on a Cluster: the one version that may skip minor versions
PLAN_ATTEMPTS = "plan.herder.io/attempts"  # how often this plan was asked for, the first time included
PLAN_APPLIED = "PlanApplied"  # a Machine's condition: whether its plan was, and why not
PLAN_FAILED = "plan.herder.io/failed"  # when its failure was first seen
RENDERED_FROM = "bootstrap.herder.io/rendered-from"  # on a bootstrap Secret: a digest of all that the script depends on
REQUEST_PROBLEM = "bootstrap.herder.io/problem"  # on a request: why the machine cannot be taken in

ADMINISTRATED = "provisioning.cattle.io/administrated"  # a management Cluster that is provisioned here
RKE2_PRIME = "provisioning.cattle.io/rke2-prime-enabled"
ETCD_HOOK = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/rke-bootstrap-cleanup"
ETCD_HOOK_OWNER = "rke-bootstrap-controller"

PLANNER = "planner"  # the owner of a Beacon while the planner has plans to write
MAKE_TOKENS = "cluster-tokens"  # the effect that makes what machines join with
MAKE_AUTHORITIES = "cluster-authorities"  # the effect that makes a cluster's certificate authorities
READ_OBJECT = "read-object"  # the effect that reads a Secret or ConfigMap which a plan is made of
MAKE_BOOTSTRAP_DATA = "bootstrap-data"  # the effect that renders an install script, with its token
READ_REQUEST = "machine-request"  # the effect that reads what a machine says of itself

# --- finalizers -----------------------------------------------------------------------------------------------------

REMOVE_CLUSTER = "wrangler.cattle.io/rke-cluster-remove"
REMOVE_CONTROL_PLANE = "wrangler.cattle.io/rke-control-plane-remove"
REMOVE_BOOTSTRAP = "wrangler.cattle.io/rke-bootstrap-etcd-removal"
REMOVE_CUSTOM_MACHINE = "wrangler.cattle.io/unmanaged-machine"


def plan_secret(bootstrap: str) -> str:
    """Of the Secret, and of the ServiceAccount, Role and RoleBinding that let a node read it."""
    return safe_concat(bootstrap, "machine", "plan")


def bootstrap_secret(bootstrap: str) -> str:
    """Of the Secret with the install script, and of the ServiceAccount whose token it carries."""
    return safe_concat(bootstrap, "machine", "bootstrap")


def account_token(account: str) -> str:
    """Of the Secret with the token of a node's ServiceAccount."""
    return safe_concat(account, "token")


def tokens_secret(control_plane: str) -> str:
    return safe_concat(control_plane, "rke", "state")


def authority_secret(cluster: str, purpose: str) -> str:
    """Of one of a cluster's certificate authorities: `ca`, `etcd`, `sa` or `proxy`, as Cluster API names them."""
    return f"{cluster}-{purpose}"


def bootstrap_template(cluster: str) -> str:
    return safe_concat(cluster, "bootstrap", "template")


def machine_deployment(cluster: str, pool: str) -> str:
    """Of the MachineDeployment of a pool, and of its MachineHealthCheck."""
    return safe_concat(cluster, pool)


def custom_machine(machine_id: str) -> str:
    """Of the request, and of the Machine, RKEBootstrap and CustomMachine that come of it."""
    return f"custom-{hashlib.sha256(machine_id.encode()).hexdigest()[:12]}"
