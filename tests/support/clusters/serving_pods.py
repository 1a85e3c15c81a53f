"""A pod on each node that serves its own name by HTTP, and checks that all pods can reach each other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import yaml

SERVING = ("sh", "-c", "echo $HOSTNAME > /tmp/index.html; httpd -f -p 8080 -h /tmp")
_REQUEST = (
    r"printf 'GET / HTTP/1.0\r\n\r\n'"  # wget of Debian's busybox needs glibc's NSS modules, which the image lacks
)

Kubectl = Callable[..., str]


def serve_on_each_node(kubectl: Kubectl, nodes: Iterable[str], image: str, *, timeout: int) -> None:
    """Start a pod on each node, including servers."""
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([_serving(node, image) for node in nodes]))
    kubectl("wait", "--for=condition=Ready", f"--timeout={timeout}s", "pods", "-l", "app=serving")


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
    script = "; ".join(f"{_REQUEST} | nc -w 10 {address} 8080" for address in addresses.values())
    for name in addresses:
        output = kubectl("exec", name, "--", "sh", "-c", script)
        assert [line for line in output.splitlines() if line.startswith("on-")] == list(addresses), (
            f"from {name}: {output}"
        )


def assert_service_reaches_pods(kubectl: Kubectl) -> None:
    """The Service works from each node; each node's own kube-proxy routes it, shortly after its creation."""
    kubectl("create", "service", "clusterip", "serving", "--tcp=80:8080")
    address = kubectl("get", "service", "serving", "-o", "jsonpath={.spec.clusterIP}")
    script = f"for n in 1 2 3 4 5 6 7 8 9; do {_REQUEST} | nc -w 3 {address} 80 && break; sleep 1; done"
    pods = kubectl("get", "pods", "-l", "app=serving", "-o", "jsonpath={.items[*].metadata.name}").split()
    for name in pods:
        output = kubectl("exec", name, "--", "sh", "-c", script)
        assert output.splitlines()[-1] in pods, f"from {name}: {output}"
