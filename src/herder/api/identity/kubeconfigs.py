"""Kubeconfigs that lead through the manager: one entry for each cluster, one for the manager itself if wanted."""

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
    """One cluster as kubectl is to know it."""

    name: str
    server: str
    user: str  # whose credentials: the name of one of the users in the file


@dataclass(frozen=True, slots=True)
class Manager:
    url: str
    certificates: str = ""  # PEM; empty where the system's are to be trusted

    def cluster(self, cluster_id: str) -> str:
        return f"{self.url.rstrip('/')}{PROXY_PREFIX}{cluster_id}"


def cluster_entries(manager: Manager, clusters: Mapping[str, str], user: str) -> list[Entry]:
    """By id; each named as people know it, by its id where that name could be taken for another's. Owners choose the
    names of their clusters: none may stand where people expect another cluster, or the manager, or control the
    terminal on which kubectl prints it."""
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


def asking_user(manager: Manager, username: str) -> Object:
    """Without a token: kubectl asks for one when it needs it."""
    host = urlsplit(manager.url).netloc
    return {
        "exec": {
            "apiVersion": EXEC_API,
            "command": "rancher",
            "args": ["token", f"--server={host}", f"--user={username}"],
            "interactiveMode": "IfAvailable",
        }
    }


# --- of a provisioned cluster ---------------------------------------------------------------------------------------


def provisioned_config(manager: Manager, management_cluster: str, bearer: str) -> Object:
    """What other programs of the Cluster API family read from the Secret `<cluster>-kubeconfig`."""
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
    """The data of that Secret."""
    rendered = text(provisioned_config(manager, management_cluster, bearer))
    return {"value": _base64(rendered), "token": _base64(bearer)}


def provisioned_binding(namespace: str, cluster: str, management_cluster: str) -> Object:
    """What its user may do: everything, in that cluster."""
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
