"""Definitions of settings: names, defaults and descriptions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from herder import __version__
from herder.api.settings.values import (
    check_boolean,
    check_commands,
    check_duration,
    check_minutes,
    check_networks,
    check_patterns,
    check_pull_policy,
    check_tls_mode,
    check_url,
)


@dataclass(frozen=True, slots=True)
class Definition:
    """A setting: its name, default, and a description for users; `check` returns "" or what is wrong with a value."""

    name: str
    default: str
    description: str
    check: Callable[[str], str] | None = None
    is_fixed: bool = False  # the process determines the value; no layer overrides it

    @property
    def environment(self) -> str:
        return "CATTLE_" + self.name.upper().replace("-", "_")


SYNC_MACHINE_LABELS = "capi-additional-sync-machine-labels"
SYNC_MACHINE_ANNOTATIONS = "capi-additional-sync-machine-annotations"
MACHINE_TAINT_PROPAGATION = "capi-machine-taint-propagation"

MACHINE_IMAGE = "machine-provision-image"
MACHINE_IMAGE_PULL_POLICY = "machine-provision-image-pull-policy"
RANCHER_MACHINE_IMAGE = "rancher-machine-image"
RANCHER_MACHINE_PATH = "rancher-machine-path"
DELETE_FAILED_MACHINES_AFTER = "delete-machine-on-failure-after"
JOB_ENVIRONMENT = "whitelist-envvars"
ARCHIVE_RETENTION = "archive-retention"

TOKEN_MAX_TTL = "auth-token-max-ttl-minutes"
TOKEN_DEFAULT_TTL = "auth-token-default-ttl-minutes"
KUBECONFIG_MAX_TTL = "kubeconfig-max-token-ttl-minutes"
KUBECONFIG_DEFAULT_TTL = "kubeconfig-default-token-ttl-minutes"
KUBECONFIG_GENERATE_TOKEN = "kubeconfig-generate-token"
SESSION_TTL = "auth-user-session-ttl-minutes"
SESSION_IDLE_TTL = "auth-user-session-idle-ttl-minutes"
TRUSTED_PROXIES = "trusted-proxies"

SERVER_URL = "server-url"
SERVER_CERTIFICATES = "cacerts"
INTERNAL_SERVER_URL = "internal-server-url"
INTERNAL_SERVER_CERTIFICATES = "internal-cacerts"
LOCAL_CLUSTER_ADDRESSES = "local-cluster-addresses"
AGENT_IMAGE = "agent-image"
AGENT_TLS_MODE = "agent-tls-mode"
IMAGE_ARCHIVES = "image-archives"
REGISTRATION_TTL = "crt-default-ttl-minutes"
REGISTRATION_GRACE = "crt-default-grace-period-minutes"
NODE_TOKENS_EXPIRE = "system-agent-installer-token-ttl-enabled"
NODE_TOKEN_UNUSED_TTL = "system-agent-installer-token-long-ttl"
NODE_TOKEN_USED_TTL = "system-agent-installer-token-short-ttl"
SERVER_VERSION = "server-version"
NODE_AGENT_VERSION = "system-agent-version"
SERVED_NODE_AGENT = "served-system-agent"
WINDOWS_AGENT_VERSION = "wins-agent-version"
WINDOWS_CSI_PROXY_VERSION = "csi-proxy-agent-version"
NODE_ASSETS = "system-agent-assets"
INSTALLER_IMAGE = "system-agent-installer-image"
DEFAULT_REGISTRY = "system-default-registry"
RKE2_PRIME_DEFAULT = "rke2-provisioning-prime-default"
MIN_TTL_MINUTES, MIN_GRACE_MINUTES = 30, 10

DEFINITIONS = {
    definition.name: definition
    for definition in (
        Definition(
            "history-retention",
            "24h",
            "Duration for which the embedded store keeps superseded revisions before compaction.",
            check_duration,
        ),
        Definition(
            "runner-commands",
            "{}",
            "JSON object of image name to command (list of strings): Jobs with such an image run as local processes.",
            check_commands,
        ),
        Definition(
            SYNC_MACHINE_LABELS,
            "",
            "Comma-separated regular expressions: Machine labels that match are copied to the Node.",
            check_patterns,
        ),
        Definition(
            SYNC_MACHINE_ANNOTATIONS,
            "",
            "Comma-separated regular expressions: Machine annotations that match are copied to the Node.",
            check_patterns,
        ),
        Definition(
            MACHINE_TAINT_PROPAGATION,
            "false",
            "Propagate the taints of Machines to their Nodes.",
            check_boolean,
        ),
        Definition(
            MACHINE_IMAGE,
            f"herder/machine:v{__version__}",
            "Image of the Jobs that create and delete machines with the built-in node drivers.",
        ),
        Definition(
            MACHINE_IMAGE_PULL_POLICY,
            "Always",
            "Image pull policy of the machine Jobs: Always, IfNotPresent or Never.",
            check_pull_policy,
        ),
        Definition(
            RANCHER_MACHINE_IMAGE,
            "rancher/machine:v0.15.0-rancher145",
            "Image of the machine Jobs of all other node drivers, which run rancher-machine.",
        ),
        Definition(
            RANCHER_MACHINE_PATH,
            "rancher-machine",
            "Path of the rancher-machine executable that the built-in runner uses instead of that image.",
        ),
        Definition(
            DELETE_FAILED_MACHINES_AFTER,
            "0s",
            "Duration after which a Machine that could not be provisioned is deleted; at least its pool's back-off.",
            check_duration,
        ),
        Definition(
            JOB_ENVIRONMENT,
            "HTTP_PROXY,HTTPS_PROXY,NO_PROXY",
            "Comma-separated environment variables that the manager passes on to machine Jobs.",
        ),
        Definition(
            ARCHIVE_RETENTION,
            "7d",
            "Duration for which provisioning logs are kept after their machine or cluster is deleted.",
            check_duration,
        ),
        Definition(
            TOKEN_MAX_TTL,
            "129600",
            "Maximum lifetime of an API token, in minutes; 0 means no limit.",
            check_minutes(0),
        ),
        Definition(
            TOKEN_DEFAULT_TTL,
            "129600",
            "Lifetime of an API token that requests none, in minutes; 0 means the maximum.",
            check_minutes(0),
        ),
        Definition(
            KUBECONFIG_MAX_TTL,
            "129600",
            "Maximum lifetime of a kubeconfig token, in minutes; 0 means no limit.",
            check_minutes(0),
        ),
        Definition(
            KUBECONFIG_DEFAULT_TTL,
            "43200",
            "Lifetime of a kubeconfig token that requests none, in minutes; 0 means the maximum.",
            check_minutes(0),
        ),
        Definition(
            KUBECONFIG_GENERATE_TOKEN,
            "true",
            "Include a token in downloaded kubeconfigs; if false, kubectl logs in when it needs one.",
            check_boolean,
        ),
        Definition(
            SESSION_TTL,
            "960",
            "Lifetime of a login session, in minutes.",
            check_minutes(1),
        ),
        Definition(
            SESSION_IDLE_TTL,
            "960",
            "Idle time after which a login session ends, in minutes.",
            check_minutes(1),
        ),
        Definition(
            TRUSTED_PROXIES,
            "",
            "Comma-separated networks of load balancers whose X-Forwarded-For header is trusted by login throttling.",
            check_networks,
        ),
        Definition(
            IMAGE_ARCHIVES,
            "",
            "Directory on the manager's host with image archives, which the manager serves to machines as a registry.",
        ),
        Definition(
            SERVER_URL,
            "",
            "URL under which agents and kubeconfigs reach this manager.",
            check_url,
        ),
        Definition(
            SERVER_CERTIFICATES,
            "",
            "CA certificates (PEM) that clients of server-url must trust.",
        ),
        Definition(
            INTERNAL_SERVER_URL,
            "",
            "URL under which clients next to the manager, such as readers of kubeconfig Secrets, reach it; "
            "defaults to server-url.",
            check_url,
        ),
        Definition(
            INTERNAL_SERVER_CERTIFICATES,
            "",
            "CA certificates (PEM) that clients of internal-server-url must trust; defaults to cacerts.",
        ),
        Definition(
            LOCAL_CLUSTER_ADDRESSES,
            "false",
            "Allow loopback and link-local addresses in kubeconfigs of workload clusters, and in webhooks and Nodes of "
            "in-memory clusters; they address the manager's own host.",
            check_boolean,
        ),
        Definition(
            AGENT_IMAGE,
            f"herder/agent:v{__version__}",
            "Image of the cluster agent in managed clusters.",
        ),
        Definition(
            AGENT_TLS_MODE,
            "strict",
            "strict: agents trust only cacerts; system-store: agents trust the system's CAs if cacerts is empty.",
            check_tls_mode,
        ),
        Definition(
            INSTALLER_IMAGE,
            "rancher/system-agent-installer-",
            "Prefix of the images that install Kubernetes on nodes; distribution and version are appended.",
        ),
        Definition(
            DEFAULT_REGISTRY,
            "",
            "Registry that nodes pull images from if the image name has none.",
        ),
        Definition(
            RKE2_PRIME_DEFAULT,
            "false",
            "Run RKE2 servers as Prime if the cluster does not specify it.",
            check_boolean,
        ),
        Definition(
            REGISTRATION_TTL,
            "43200",
            "Interval at which cluster registration tokens are rotated, in minutes.",
            check_minutes(MIN_TTL_MINUTES),
        ),
        Definition(
            REGISTRATION_GRACE,
            "180",
            "Grace period in which the previous registration token stays valid, in minutes.",
            check_minutes(MIN_GRACE_MINUTES),
        ),
        Definition(
            NODE_TOKENS_EXPIRE,
            "true",
            "Expire the bootstrap token in the install script of a new machine.",
            check_boolean,
        ),
        Definition(
            NODE_TOKEN_UNUSED_TTL,
            "30m",
            "Validity of an unused bootstrap token after its creation, as a duration.",
            check_duration,
        ),
        Definition(
            NODE_TOKEN_USED_TTL,
            "30s",
            "Validity of a bootstrap token after its first use, as a duration.",
            check_duration,
        ),
        Definition(
            SERVER_VERSION,
            f"v{__version__}",
            "Version of this manager; a value has no effect.",
        ),
        Definition(
            NODE_AGENT_VERSION,
            f"v{__version__}",
            "Version of the node agent (system agent) that new machines install.",
        ),
        Definition(
            SERVED_NODE_AGENT,
            "",
            "Version and SHA-256 of the node agent that this manager serves; a value has no effect.",
            is_fixed=True,
        ),
        Definition(
            WINDOWS_AGENT_VERSION,
            "",
            "Version of wins on Windows nodes; only read by other programs.",
        ),
        Definition(
            WINDOWS_CSI_PROXY_VERSION,
            "",
            "Version of the CSI proxy on Windows nodes; only read by other programs.",
        ),
        Definition(
            NODE_ASSETS,
            "",
            "Directory on the manager's host with additional node downloads, such as rancher-system-agent-amd64.",
        ),
    )
}
