"""The node service of kubeadm clusters: its decisions from Nodes, and its routes on a real kernel."""

from __future__ import annotations

import ast
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from herder.kubeadm import node_service as service

SOURCE = Path(service.__file__)


def node(
    name: str, address: str = "", pods: str = "", *, server: bool = False, ready: bool = True, **annotations: str
) -> Any:
    return {
        "metadata": {
            "name": name,
            "labels": {service.CONTROL_PLANE: ""} if server else {},
            "annotations": {
                getattr(service, name_of_annotation.upper()): value for name_of_annotation, value in annotations.items()
            },
        },
        "spec": {"podCIDRs": [pods]} if pods else {},
        "status": {
            "addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": address}],
            "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
        },
    }


def by_name(*nodes: Any) -> dict[str, Any]:
    return {each["metadata"]["name"]: each for each in nodes}


def test_the_program_runs_on_the_oldest_supported_python() -> None:
    tree = ast.parse(SOURCE.read_text(), feature_version=(3, 6))
    imported = {each.split(".")[0] for each in _imports(tree)}
    assert imported <= set(sys.stdlib_module_names)


def _imports(tree: ast.Module) -> list[str]:
    names = []
    for each in ast.walk(tree):
        if isinstance(each, ast.Import):
            names += [alias.name for alias in each.names]
        if isinstance(each, ast.ImportFrom):
            names.append(each.module or "")
    return names


def test_there_is_a_route_to_the_pods_of_every_other_machine() -> None:
    nodes = by_name(
        node("own", "10.0.0.1", "10.42.0.0/24"),
        node("other", "10.0.0.2", "10.42.1.0/24"),
        node("without-pods", "10.0.0.3"),
        node("without-address", "", "10.42.3.0/24"),
        node("other-version", "fd00::4", "fd00:42:0:4::/64"),
    )
    nodes["other-version"]["status"]["addresses"].insert(0, {"type": "InternalIP", "address": "10.0.0.4"})
    assert service.wanted_routes(nodes, "own", ["10.42.0.0/16", "fd00:42::/56"]) == {
        "10.42.1.0/24": "10.0.0.2",
        "fd00:42:0:4::/64": "fd00::4",
    }


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (by_name(node("a", server=True), node("b", server=True)), "a"),
        (by_name(node("a", server=True, ready=False), node("b", server=True)), "b"),
        (by_name(node("a", server=True, remove="true"), node("b", server=True)), "b"),
        (by_name(node("a"), node("b", server=True)), "b"),
        (by_name(node("a", server=True, remove="true")), None),
    ],
)
def test_one_ready_server_that_is_not_removed_removes_members(nodes: dict[str, Any], expected: str | None) -> None:
    assert service.acting_server(nodes) == expected


def test_a_member_is_removed_once() -> None:
    nodes = by_name(
        node("a", server=True, remove="true"),
        node("b", server=True, remove="true", removed="b"),
        node("c", server=True),
    )
    assert service.to_remove(nodes) == ["a"]


def test_a_server_to_be_removed_stops_serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its etcd keeps running until other servers have removed the member."""
    monkeypatch.setattr(service, "MANIFESTS", str(tmp_path))
    for name in (*service.SERVING, "etcd"):
        (tmp_path / f"{name}.yaml").touch()
    for _ in range(2):
        service.stop_serving()
        assert [path.name for path in tmp_path.iterdir()] == ["etcd.yaml"]


def test_a_member_is_removed_when_its_server_stops_listening(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as serving:
        monkeypatch.setattr(service, "API_PORT", serving.getsockname()[1])
        waiting = threading.Thread(target=service.wait_for_silence, args=("127.0.0.1", 60.0))
        waiting.start()
        serving.accept()[0].close()
        assert waiting.is_alive()
    waiting.join(30)
    assert not waiting.is_alive()


def test_waiting_for_a_server_to_stop_has_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as serving:
        monkeypatch.setattr(service, "API_PORT", serving.getsockname()[1])
        service.wait_for_silence("127.0.0.1", 0.3)


@pytest.fixture
def namespace() -> Any:
    if os.geteuid() != 0:
        pytest.skip("needs root, for a network namespace of its own")
    name = f"routes-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        for command in (
            ["link", "set", "lo", "up"],
            ["link", "add", "up0", "type", "veth", "peer", "name", "up1"],
            ["addr", "add", "10.0.0.1/24", "dev", "up0"],
            ["link", "set", "up0", "up"],
            ["link", "set", "up1", "up"],
        ):
            subprocess.run(["ip", "-n", name, *command], check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


STEP = """
import json, sys
sys.path.insert(0, sys.argv[1])
import node_service
node_service.CNI_FILE = sys.argv[2]
network = node_service.Network("own", ["10.42.0.0/16", "fd00:42::/56"])
network._masqueraded = True  # the host may have no iptables
for nodes in json.load(sys.stdin):
    network.become(nodes)
    print(json.dumps(node_service.own_routes()))
"""


def routes(namespace: str, directory: Path, *steps: dict[str, Any]) -> list[dict[str, str]]:
    """The routes of the service on machine `own`, after each state of the Nodes."""
    enter = ["ip", "netns", "exec", namespace, sys.executable, "-c", STEP, str(SOURCE.parent)]
    command = [*enter, str(directory / "net.d" / "10-herder.conflist")]
    result = subprocess.run(command, input=json.dumps(steps), capture_output=True, text=True, check=True, timeout=60)
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_routes_follow_the_nodes_and_foreign_routes_are_kept(namespace: str, tmp_path: Path) -> None:
    subprocess.run(["ip", "-n", namespace, "route", "add", "192.0.2.0/24", "via", "10.0.0.9"], check=True)
    own, moved = node("own", "10.0.0.1", "10.42.0.0/24"), node("b", "10.0.0.7", "10.42.1.0/24")
    steps = [
        by_name(own, node("b", "10.0.0.2", "10.42.1.0/24"), node("c", "10.0.0.3", "10.42.2.0/24")),
        by_name(own, moved),
        by_name(own),
    ]
    assert routes(namespace, tmp_path, *steps) == [
        {"10.42.1.0/24": "10.0.0.2", "10.42.2.0/24": "10.0.0.3"},
        {"10.42.1.0/24": "10.0.0.7"},
        {},
    ]
    all_routes = subprocess.run(["ip", "-n", namespace, "route"], capture_output=True, text=True, check=True).stdout
    assert "192.0.2.0/24" in all_routes
    bridge = json.loads((tmp_path / "net.d" / "10-herder.conflist").read_text())
    assert bridge["plugins"][0]["ipam"]["ranges"] == [[{"subnet": "10.42.0.0/24"}]]


@pytest.mark.parametrize("network", ["0.0.0.0/0", "10.0.0.9/32", "10.43.0.0/16", "10.40.0.0/13", "169.254.169.254/32"])
def test_a_node_can_redirect_only_pod_traffic(namespace: str, tmp_path: Path, network: str) -> None:
    """A worker that registers another Node chooses its pod network and its address."""
    own, other = node("own", "10.0.0.1", "10.42.0.0/24"), node("b", "10.0.0.2", "10.42.1.0/24")
    (actual,) = routes(namespace, tmp_path, by_name(own, other, node("forged", "10.0.0.66", network)))
    assert actual == {"10.42.1.0/24": "10.0.0.2"}


@pytest.mark.parametrize("address", ["nowhere", "dev", "127.0.0.1", "0.0.0.0", "fd00::66", "192.0.2.66"])
def test_an_invalid_node_address_does_not_affect_other_routes(namespace: str, tmp_path: Path, address: str) -> None:
    """Kubelets report their addresses, and API servers accept any text. The last address is unreachable."""
    own, forged = node("own", "10.0.0.1", "10.42.0.0/24"), node("a", address, "10.42.9.0/24")
    (actual,) = routes(namespace, tmp_path, by_name(own, forged, node("b", "10.0.0.2", "10.42.1.0/24")))
    assert actual == {"10.42.1.0/24": "10.0.0.2"}


def test_a_worker_has_no_etcd_member_to_remove() -> None:
    """Servers would wait for it again and again, and remove no other member."""
    assert service.to_remove(by_name(node("a", "10.0.0.66", remove="true"), node("b", server=True, remove="true"))) == [
        "b"
    ]
