"""Objects that exist from the first start: the system namespaces and the `kubernetes` Service."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from herder.engine.apiserver.auth.system_objects import new_metadata
from herder.engine.apiserver.registry.storage_codec import encoder
from herder.engine.meta.kinds import Object
from herder.engine.store import Key, Put, Store

NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_SERVICE_ADDRESS = "10.96.0.1"


async def bootstrap_objects(store: Store, *, now: datetime, entropy: Callable[[int], bytes]) -> None:
    """Create the missing bootstrap objects in one transaction."""
    desired = {Key("namespaces", "", name): _namespace(name) for name in NAMESPACES}
    desired[Key("services", "default", "kubernetes")] = _service()
    changes = []
    for key, obj in desired.items():
        if store.latest(key) is None:
            obj["metadata"] = new_metadata(obj["metadata"], now=now, entropy=entropy)
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
    """The Service through which programs inside a cluster find the API server."""
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
