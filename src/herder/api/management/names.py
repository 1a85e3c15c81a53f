"""Names, labels, annotations and paths of managed clusters and their agents."""

from __future__ import annotations

import re

from herder.api.machines.names import safe_concat

SYSTEM_NAMESPACE = "cattle-system"  # namespace of the agent in its cluster
AGENT_ACCOUNT = "cattle"  # service account of the agent
AGENT_TOKEN_SECRET = "cattle-agent-token"  # the token that the manager uses in the cluster
AGENT_REGISTRATION_SECRET = "cattle-agent-registration"  # the registration token as last rotated by the manager
CREDENTIALS_NAMESPACE = "cattle-global-data"  # in the manager: credentials that agents registered with
TOKENS_NAMESPACE = "cattle-tokens"
DEFAULT_WORKSPACE = "fleet-default"
LOCAL = "local"
DEFAULT_TOKEN = "default-token"  # the ClusterRegistrationToken that every managed cluster has

TOKEN_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
TOKEN_LENGTH = 54

TUNNELS = ("/v3/connect", "/v3/connect/register")  # endpoints that agents connect to
TUNNEL_TOKEN = "x-api-tunnel-token"  # headers of a connecting agent, in lower case
TUNNEL_PARAMETERS = "x-api-tunnel-params"
TUNNEL_ID = "x-api-tunnel-id"  # of another gateway replica

PROXY_PREFIX = "/k8s/clusters/"

TOKEN_READER = "crt-token-reader"  # Role that allows reading a cluster's registration tokens
TOKEN_LABEL = "management.herder.io/registration-token"  # on their Secrets: name of the ClusterRegistrationToken

PREFIX = "management.herder.io/"  # annotations of management Clusters that only the manager writes
CONNECTED_SINCE = f"{PREFIX}connected-since"  # written by the gateway while an agent is connected
CONNECTED_TO = f"{PREFIX}connected-to"  # the gateway replica the agent is connected to
AGENT_CONFLICT = f"{PREFIX}agent-conflict"  # time and outcome of the last registration of another agent
# namespace/name of the provisioning Cluster it was created for
PROVISIONING_CLUSTER_OF = f"{PREFIX}provisioning-cluster"
# on a provisioning Cluster: the requested name of its management Cluster
MANAGEMENT_NAME = "provisioning.cattle.io/management-cluster-name"

AGENT_PREFIX = "stv-cluster-"  # prefix of the second tunnel's key, and of the bearer token that authenticates it

PUSH_TOKEN = "agent-token"  # effect: give an agent its rotated registration token
MAKE_KUBECONFIG = "cluster-kubeconfig"  # effect: create a cluster's own user, token and kubeconfig

LOCAL_WORKSPACE = "fleet-local"

REMOVE_PROVISIONING = "wrangler.cattle.io/provisioning-cluster-remove"  # finalizers
REMOVE_MANAGEMENT = "wrangler.cattle.io/mgmt-cluster-remove"

LEGACY_NAME = "^(c-[a-z0-9]{5}|local)$"
_LEGACY_NAME = re.compile(LEGACY_NAME)


def is_legacy(management_cluster: str) -> bool:
    """Whether it was created as a management Cluster; its provisioning Cluster is derived, with the same name."""
    return _LEGACY_NAME.fullmatch(management_cluster) is not None


def credential_secret(management_cluster: str) -> str:
    """Name of the Secret with the credentials that an agent registered."""
    return safe_concat("cluster-serviceaccounttoken", management_cluster)


def token_secret(registration_token: str) -> str:
    return f"crt-token-{registration_token}"
