"""A pod on each node that tells its name to whoever asks, and whether all of them reach each other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import yaml

SERVING = ("sh", "-c", "echo $HOSTNAME > /tmp/index.html; httpd -f -p 8080 -h /tmp")
_REQUEST = r"printf 'GET / HTTP/1.0\r\n\r\n'"  # Debian's busybox is of glibc, and its wget dies in an image without it

Kubectl = Callable[..., str]


def serve_on_each_node(kubectl: Kubectl, nodes: Iterable[str], image: str, *, patience: int) -> None:
    """On servers too."""
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([_serving(node, image) for node in nodes]))
    kubectl("wait", "--for=condition=Ready", f"--timeout={patience}s", "pods", "-l", "app=serving")


def _serving(node: str, image: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"on-{node}", "labels": {"app": "serving"}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": image, "command": [*SERVING]}],
        },
    }


def assert_pods_reach_each_other(kubectl: Kubectl) -> None:
    pods = json.loads(kubectl("get", "pods", "-l", "app=serving", "-o", "json"))["items"]
    addresses = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in pods}
    asking = "; ".join(f"{_REQUEST} | nc -w 10 {address} 8080" for address in addresses.values())
    for name in addresses:
        told = kubectl("exec", name, "--", "sh", "-c", asking)
        assert [line for line in told.splitlines() if line.startswith("on-")] == list(addresses), f"from {name}: {told}"


def assert_a_service_leads_to_them(kubectl: Kubectl) -> None:
    """Asked on each node, for it is the node's own kube-proxy that knows where it leads, a moment later."""
    kubectl("create", "service", "clusterip", "serving", "--tcp=80:8080")
    address = kubectl("get", "service", "serving", "-o", "jsonpath={.spec.clusterIP}")
    asking = f"for n in 1 2 3 4 5 6 7 8 9; do {_REQUEST} | nc -w 3 {address} 80 && break; sleep 1; done"
    pods = kubectl("get", "pods", "-l", "app=serving", "-o", "jsonpath={.items[*].metadata.name}").split()
    for name in pods:
        told = kubectl("exec", name, "--", "sh", "-c", asking)
        assert told.splitlines()[-1] in pods, f"from {name}: {told}"
