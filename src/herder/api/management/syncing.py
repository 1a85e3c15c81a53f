"""Secrets that are brought into managed clusters, and those of them that a new cluster must have before all else.

A cloud provider's charts may need credentials before any node is of use: until the cluster has them, its agent runs
where it needs neither network nor names of the cluster, and nothing else is asked of the cluster.
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

SYNC, SYNC_FIRST = "provisioning.cattle.io/sync", "provisioning.cattle.io/sync-bootstrap"
TARGET_NAMESPACE = "provisioning.cattle.io/sync-target-namespace"
TARGET_NAME = "provisioning.cattle.io/sync-target-name"
ALLOWED_NAMESPACES = ("kube-system",)  # besides the Secret's own
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
"""Types that hold data. API servers and controllers act on others: tokens of service accounts, bootstrap tokens."""

SYNCED_FROM = "provisioning.herder.io/synced-from"  # on a Secret in a cluster: namespace and name of its source
PLACEHOLDER = "{{clusterId}}"  # in the contents: what stands there in the cluster is its id

SYNC_SECRET = "sync-secret"  # the effect that brings a Secret into a cluster
PRE_BOOTSTRAPPED = "PreBootstrapped"  # the condition of a management Cluster that has what it must have first

SYNCED_TO, SYNCED_FIRST_TO = "synced-to", "synced-first-to"
"""Indexes of Secrets: by the namespace and name of each provisioning Cluster that they are for."""


def has_sync_annotation(secret: Object | None) -> bool:
    """Also of an object that no schema has been applied to."""
    marks = ((secret or {}).get("metadata") or {}).get("annotations")
    return isinstance(marks, dict) and (SYNC in marks or SYNC_FIRST in marks)


def synced_to(secret: Object) -> Iterable[str]:
    """Indexer. A Secret must name the cluster: who may write in its namespace may not thereby read it elsewhere."""
    marks = annotations_of(secret)
    if not (marks.get(SYNC) or marks.get(SYNC_FIRST)):
        return ()
    named = (name.strip() for name in marks.get(AUTHORIZED_CLUSTERS, "").split(","))
    return [f"{secret['metadata']['namespace']}/{name}" for name in named if name]


def synced_first_to(secret: Object) -> Iterable[str]:
    """Indexer."""
    return synced_to(secret) if comes_first(secret) else ()


def comes_first(secret: Object) -> bool:
    return annotations_of(secret).get(SYNC_FIRST) == "true"


def target_of(secret: Object) -> tuple[str, str]:
    """Namespace and name in the cluster."""
    marks, meta = annotations_of(secret), secret["metadata"]
    return marks.get(TARGET_NAMESPACE) or meta["namespace"], marks.get(TARGET_NAME) or meta["name"]


def problem_of(secret: Object) -> str:
    """Why it cannot be brought anywhere, in words for its owner; empty where it can."""
    wanted = annotations_of(secret).get(TARGET_NAMESPACE) or secret["metadata"]["namespace"]
    if wanted in (*ALLOWED_NAMESPACES, secret["metadata"]["namespace"]):
        return ""
    return f'annotation {TARGET_NAMESPACE}: "{wanted}" is not allowed; say kube-system, or leave it out'


def is_pre_bootstrapped(management: Object) -> bool:
    return is_true(management, PRE_BOOTSTRAPPED)


def outstanding(view: View, provisioning: str, management: str) -> str | None:
    """Why a new cluster has not got all that it must have first, as far as that is known; None where it has.
    `provisioning`: namespace and name."""
    if not view.count(SECRET_METADATA, (SYNCED_FIRST_TO, provisioning)):
        return None
    known = view.get(MANAGEMENT_CLUSTER, management)
    if known is None or is_pre_bootstrapped(known):
        return None
    status = find(known, PRE_BOOTSTRAPPED) or {}
    return str(status.get("message") or "") if status.get("status") == "False" else ""
