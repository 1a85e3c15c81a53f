"""A removed machine and the next one with its ID, whose plan Secrets have the same name."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from tests.support.capi import HerderRun
from tests.support.embedded import Embedded
from tests.support.engines import CONTROLLERS, Engine
from tests.support.kube import RealKube, free_port
from tests.unit.gateway.nodes.manager import FLAGS, NAMESPACE, Manager, eventually

WATCH_SECONDS = 60


@pytest.fixture(scope="module", params=["embedded", "real"])
def manager(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    if request.param == "embedded":
        with Embedded(tmp_path_factory.mktemp("up"), flags=FLAGS) as server:
            yield _ready(Manager.of(server))
        return
    listen = f"127.0.0.1:{free_port()}"
    flags = ("--gateway-listen", listen, "--gateway-name", "127.0.0.1", "--set", f"server-url=https://{listen}")
    with RealKube(tmp_path_factory.mktemp("kube"), controller_manager=True, controllers=CONTROLLERS) as kube:
        options = ("--capi-core=own", "--no-machines", "--no-webhooks")
        with HerderRun(Engine("real", kube.kubeconfig), tmp_path_factory.mktemp("herder"), *flags, *options) as process:
            yield _ready(Manager(kube.kubeconfig, f"https://{listen}", process.log))


def _ready(manager: Manager) -> Manager:
    eventually(lambda: manager.kubectl("get", "clusters.management.cattle.io", check=False), "no manager runs")
    manager.create_cluster()
    return manager


def curl(*arguments: str) -> list[str]:
    return ["curl", "--insecure", "--silent", "--no-buffer", *arguments]


def register(manager: Manager, machine_id: str) -> tuple[str, str]:
    """The name of the plan Secret, and the token that reads it."""
    headers = (f"X-Cattle-Id: {machine_id}", "X-Cattle-Role-Worker: true", "X-Cattle-Internal-Address: 10.0.0.9")
    arguments = [
        argument for header in (*headers, f"Authorization: Bearer {manager.token}") for argument in ("-H", header)
    ]
    deadline = time.monotonic() + WATCH_SECONDS
    while True:
        result = subprocess.run(
            curl(*arguments, f"{manager.url}/v3/connect/agent"), capture_output=True, text=True, check=True
        )
        if result.stdout.startswith("{"):
            response = json.loads(result.stdout)
            return response["secretName"], yaml.safe_load(response["kubeConfig"])["users"][0]["user"]["token"]
        assert time.monotonic() < deadline, result.stdout
        time.sleep(0.5)


READ = """
import socket, ssl, sys
host, port, *lines = sys.argv[1:]
context = ssl._create_unverified_context()
with context.wrap_socket(socket.create_connection((host, int(port)))) as connection:
    connection.sendall("\\r\\n".join([*lines, "", ""]).encode())
    while data := connection.recv(65536):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
"""
WEBSOCKET = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    "Origin: https://manager",  # kube-apiserver requires it
)


@pytest.mark.parametrize("upgrade", [(), WEBSOCKET], ids=["http", "websocket"])
def test_a_removed_machine_does_not_see_the_plan_of_its_successor(
    manager: Manager, tmp_path: Path, upgrade: tuple[str, ...]
) -> None:
    machine_id = f"reused-{len(upgrade)}"
    name, token = register(manager, machine_id)
    machine = name.removesuffix("-machine-plan")
    query = f"watch=true&fieldSelector=metadata.name={name}&timeoutSeconds={WATCH_SECONDS}"
    target = urlsplit(f"{manager.url}/api/v1/namespaces/{NAMESPACE}/secrets?{query}")
    lines = (f"GET {target.path}?{target.query} HTTP/1.1", f"Host: {target.netloc}", f"Authorization: Bearer {token}")
    watch_output = tmp_path / "seen"
    with watch_output.open("w") as output:
        address = (str(target.hostname), str(target.port))
        watch = subprocess.Popen([sys.executable, "-c", READ, *address, *lines, *upgrade], stdout=output)
    try:
        eventually(lambda: b'"ADDED"' in watch_output.read_bytes(), "the watch has no event")
        manager.kubectl("delete", "machine", machine, "-n", NAMESPACE)
        eventually(lambda: manager.find("secrets", name) is None, "the plan Secret is not deleted")
        register(manager, machine_id)
        manager.write_plan(machine, "for-the-successor")
        time.sleep(2)
    finally:
        watch.kill()
        watch.wait()
    successor = manager.find("secrets", name)
    assert successor is not None
    assert successor["data"]["plan"].encode() not in watch_output.read_bytes()
