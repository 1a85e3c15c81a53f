"""The objects that every server has from its first moment, written in one transaction."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from herder.engine.apiserver.auth.stored import born
from herder.engine.apiserver.stored import encoder
from herder.engine.meta.kinds import Object
from herder.engine.store import Key, Put, Store

NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_SERVICE_ADDRESS = "10.96.0.1"


async def bootstrap_objects(store: Store, *, now: datetime, entropy: Callable[[int], bytes]) -> None:
    wanted = {Key("namespaces", "", name): _namespace(name) for name in NAMESPACES}
    wanted[Key("services", "default", "kubernetes")] = _service()
    changes = []
    for key, obj in wanted.items():
        if store.latest(key) is None:
            obj["metadata"] = born(obj["metadata"], now=now, entropy=entropy)
            changes.append(Put(key, encoder(obj), 0))
    if changes:
        await store.write(*changes)


def _namespace(name: str) -> Object:
    return {
        "kind": "Namespace",
        "apiVersion": "v1",
        "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    }


def _service() -> Object:
    """How programs inside a cluster find its API; they read the address from their environment."""
    return {
        "kind": "Service",
        "apiVersion": "v1",
        "metadata": {
            "name": "kubernetes",
            "namespace": "default",
            "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": 6443}],
            "clusterIP": _SERVICE_ADDRESS,
            "clusterIPs": [_SERVICE_ADDRESS],
            "type": "ClusterIP",
            "sessionAffinity": "None",
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster",
        },
        "status": {"loadBalancer": {}},
    }
