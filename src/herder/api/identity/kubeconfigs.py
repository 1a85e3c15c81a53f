"""Kubeconfigs that use the manager's proxy: one context per cluster, and optionally one for the manager itself."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import yaml

from herder.api.identity.names import provisioning_user
from herder.api.management.kinds import CLUSTER_BINDING
from herder.api.management.names import PROXY_PREFIX
from herder.engine.meta.kinds import Object

MANAGER_ENTRY = "rancher"
EXEC_API = "client.authentication.k8s.io/v1beta1"


@dataclass(frozen=True, slots=True)
class Entry:
    """A cluster and context in a kubeconfig."""

    name: str
    server: str
    user: str  # name of the user entry


@dataclass(frozen=True, slots=True)
class Manager:
    url: str
    certificates: str = ""  # PEM; empty to trust the system's CAs

    def cluster(self, cluster_id: str) -> str:
        return f"{self.url.rstrip('/')}{PROXY_PREFIX}{cluster_id}"


def cluster_entries(manager: Manager, clusters: Mapping[str, str], user: str) -> list[Entry]:
    """Return an entry per cluster, named by display name, or by ID if that name is ambiguous.

    Owners choose display names: none may pose as another cluster or the manager, or control the terminal that kubectl
    prints to.
    """
    taken = Counter((*clusters.values(), MANAGER_ENTRY))
    return [
        Entry(
            name if taken[name] == 1 and _is_plain(name, cluster_id, clusters) else cluster_id,
            manager.cluster(cluster_id),
            user,
        )
        for cluster_id, name in sorted(clusters.items())
    ]


def _is_plain(name: str, cluster_id: str, clusters: Mapping[str, str]) -> bool:
    return name.isprintable() and (name == cluster_id or name not in clusters)


def config(manager: Manager, entries: Sequence[Entry], users: Mapping[str, Object], current: str = "") -> Object:
    authority = {"certificate-authority-data": _base64(manager.certificates)} if manager.certificates else {}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": entry.name, "cluster": {"server": entry.server, **authority}} for entry in entries],
        "users": [{"name": name, "user": user} for name, user in users.items()],
        "contexts": [{"name": entry.name, "context": {"cluster": entry.name, "user": entry.user}} for entry in entries],
        "current-context": current or (entries[0].name if entries else ""),
    }


def text(rendered: Object) -> str:
    return yaml.safe_dump(rendered, sort_keys=False)


def bearer_user(bearer: str) -> Object:
    return {"token": bearer}


def exec_user(manager: Manager, username: str) -> Object:
    """Return an exec credential plugin user: kubectl requests a token when it needs one."""
    host = urlsplit(manager.url).netloc
    return {
        "exec": {
            "apiVersion": EXEC_API,
            "command": "rancher",
            "args": ["token", f"--server={host}", f"--user={username}"],
            "interactiveMode": "IfAvailable",
        }
    }


# --- kubeconfig Secret of a provisioned cluster ---------------------------------------------------------------------


def provisioned_config(manager: Manager, management_cluster: str, bearer: str) -> Object:
    """Return the kubeconfig that other Cluster API tools read from the Secret `<cluster>-kubeconfig`."""
    authority = {"certificate-authority-data": _base64(manager.certificates)} if manager.certificates else {}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "cluster", "cluster": {"server": manager.cluster(management_cluster), **authority}}],
        "users": [{"name": "user", "user": bearer_user(bearer)}],
        "contexts": [{"name": "default", "context": {"cluster": "cluster", "user": "user"}}],
        "current-context": "default",
    }


def provisioned_data(manager: Manager, management_cluster: str, bearer: str) -> Object:
    """Return the data of that Secret."""
    rendered = text(provisioned_config(manager, management_cluster, bearer))
    return {"value": _base64(rendered), "token": _base64(bearer)}


def provisioned_binding(namespace: str, cluster: str, management_cluster: str) -> Object:
    """Return the binding that makes its user cluster owner."""
    user = provisioning_user(namespace, cluster)
    return {
        "apiVersion": CLUSTER_BINDING.api_version,
        "kind": CLUSTER_BINDING.kind,
        "metadata": {"name": f"{user}-owner", "namespace": management_cluster},
        "clusterName": management_cluster,
        "roleTemplateName": "cluster-owner",
        "userName": user,
    }


def _base64(content: str) -> str:
    return base64.b64encode(content.encode()).decode()
