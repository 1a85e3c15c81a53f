"""Secrets that are synced to managed clusters, and those a new cluster needs before anything else (pre-bootstrap).

A cloud provider's charts may need credentials before any node is usable. Until the cluster has them, its agent runs on
the host network, and nothing else is deployed.
"""

from __future__ import annotations

from collections.abc import Iterable

from herder.api.capi.conditions import find, is_true
from herder.api.capi.kinds import SECRET_METADATA
from herder.api.capi.names import annotations_of
from herder.api.machines.credentials import CREDENTIAL_TYPE
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.rke.names import AUTH_SECRET_TYPE, AUTHORIZED_CLUSTERS
from herder.engine.meta.kinds import Object
from herder.engine.runtime.view import View

SYNC, SYNC_BOOTSTRAP = "provisioning.cattle.io/sync", "provisioning.cattle.io/sync-bootstrap"
TARGET_NAMESPACE = "provisioning.cattle.io/sync-target-namespace"
TARGET_NAME = "provisioning.cattle.io/sync-target-name"
ALLOWED_NAMESPACES = ("kube-system",)  # in addition to the Secret's own
ALLOWED_TYPES = (
    "Opaque",
    "kubernetes.io/basic-auth",
    "kubernetes.io/dockercfg",
    "kubernetes.io/dockerconfigjson",
    "kubernetes.io/ssh-auth",
    "kubernetes.io/tls",
    AUTH_SECRET_TYPE,
    CREDENTIAL_TYPE,
)
"""Types that only hold data. API servers and controllers act on others, such as service account and
bootstrap tokens.
"""

SYNCED_FROM = "provisioning.herder.io/synced-from"  # on a Secret in a cluster: namespace and name of its source
PLACEHOLDER = "{{clusterId}}"  # in the contents: replaced by the cluster's ID

SYNC_SECRET = "sync-secret"  # effect: sync a Secret to a cluster
PRE_BOOTSTRAPPED = "PreBootstrapped"  # condition of a management Cluster that has all pre-bootstrap Secrets
REFUSED = "SecretRefused"  # reason: a Secret is not synced until a user changes it

SYNCED_TO, SYNCED_BOOTSTRAP_TO = "synced-to", "synced-first-to"
"""Indexes of Secrets by namespace/name of each provisioning Cluster they are synced to."""


def has_sync_annotation(secret: Object | None) -> bool:
    """Accepts objects that no schema has checked."""
    marks = ((secret or {}).get("metadata") or {}).get("annotations")
    return isinstance(marks, dict) and (SYNC in marks or SYNC_BOOTSTRAP in marks)


def synced_to(secret: Object) -> Iterable[str]:
    """Indexer. The Secret must name the cluster: write access to its namespace must not allow reading it elsewhere."""
    marks = annotations_of(secret)
    if not (marks.get(SYNC) or marks.get(SYNC_BOOTSTRAP)):
        return ()
    named = (name.strip() for name in marks.get(AUTHORIZED_CLUSTERS, "").split(","))
    return [f"{secret['metadata']['namespace']}/{name}" for name in named if name]


def synced_bootstrap_to(secret: Object) -> Iterable[str]:
    """Indexer: as above, for pre-bootstrap Secrets."""
    return synced_to(secret) if is_pre_bootstrap_secret(secret) else ()


def is_pre_bootstrap_secret(secret: Object) -> bool:
    return annotations_of(secret).get(SYNC_BOOTSTRAP) == "true"


def target_of(secret: Object) -> tuple[str, str]:
    """Return namespace and name of the copy in the cluster."""
    marks, meta = annotations_of(secret), secret["metadata"]
    return marks.get(TARGET_NAMESPACE) or meta["namespace"], marks.get(TARGET_NAME) or meta["name"]


def sync_problem(secret: Object) -> str:
    """Return why it cannot be synced; "" if it can."""
    wanted = annotations_of(secret).get(TARGET_NAMESPACE) or secret["metadata"]["namespace"]
    if wanted in (*ALLOWED_NAMESPACES, secret["metadata"]["namespace"]):
        return ""
    return f'annotation {TARGET_NAMESPACE}: "{wanted}" is not allowed; use kube-system, or remove the annotation'


def refusal(management: Object | None, control_plane: Object | None) -> str:
    """Return why a new cluster waits for a Secret until a user changes the Secret; "" if it does not.

    Once the control plane is initialized, the cluster does not wait for pre-bootstrap Secrets.
    """
    steps = ((control_plane or {}).get("status") or {}).get("initialization") or {}
    if steps.get("controlPlaneInitialized"):
        return ""
    status = find(management, PRE_BOOTSTRAPPED) or {}
    is_refused = status.get("status") == "False" and status.get("reason") == REFUSED
    return str(status.get("message") or "") if is_refused else ""


def is_pre_bootstrapped(management: Object) -> bool:
    return is_true(management, PRE_BOOTSTRAPPED)


def pre_bootstrap_problem(view: View, provisioning: str, management: str) -> str | None:
    """Return why a new cluster does not have all pre-bootstrap Secrets, "" if the reason is unknown; None if it has.

    `provisioning` is namespace/name.
    """
    if not view.count(SECRET_METADATA, (SYNCED_BOOTSTRAP_TO, provisioning)):
        return None
    known = view.get(MANAGEMENT_CLUSTER, management)
    if known is None or is_pre_bootstrapped(known):
        return None
    status = find(known, PRE_BOOTSTRAPPED) or {}
    return str(status.get("message") or "") if status.get("status") == "False" else ""
