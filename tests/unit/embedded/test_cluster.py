"""A server and a node of the embedded distribution, as processes of machines, observed with kubectl."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from herder.api.rke.names import MACHINE_UID
from herder.api.rke.node.join_token import node_token
from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.client.kubeconfig import RestConfig, load
from herder.engine.meta.errors import Forbidden, StatusError, Unauthorized
from herder.engine.meta.kinds import GroupVersionResource, Object
from tests.support.peers import peer

NODES = GroupVersionResource("", "v1", "nodes")
SECRETS = GroupVersionResource("", "v1", "secrets")
CONFIG_MAPS = GroupVersionResource("", "v1", "configmaps")


class Machine:
    """A directory that stands for a machine, with its own address."""

    def __init__(self, directory: Path, name: str, address: str) -> None:
        self.directory, self.name, self.address = directory, name, address
        self.process: subprocess.Popen[bytes] | None = None
        (directory / "etc" / "config.yaml.d").mkdir(parents=True)

    def configure(self, **keys: object) -> None:
        configuration = {"node-name": self.name, "node-ip": [self.address], "data-dir": str(self.data), **keys}
        (self.directory / "etc" / "config.yaml.d" / "50-rancher.yaml").write_text(json.dumps(configuration))

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "etc" / "herder.yaml"

    def start(self, role: str) -> None:
        with (self.directory / "log").open("ab") as log:
            command = [sys.executable, "-m", "herder.embedded", role, "--config-dir", str(self.directory / "etc")]
            self.process = subprocess.Popen([*command, "--version", "v1.36.3+herder1"], stdout=log, stderr=log)

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(30)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Machine, Machine]]:
    base = tmp_path_factory.mktemp("embedded")
    third = os.getpid() % 250 + 1
    server = Machine(base / "server", "s1", f"127.88.{third}.1")
    node = Machine(base / "node", "w1", f"127.88.{third}.2")
    server.configure(token="for-servers", **{"agent-token": "for-nodes", "node-label": ["zone=one"]})
    server.start("server")
    try:
        _wait_for(server.kubeconfig.exists)
        (node.data / "agent").mkdir(parents=True)
        (node.data / "agent" / "server-ca.crt").write_bytes((server.data / "server/tls/ca.crt").read_bytes())
        label = f"{MACHINE_UID}=uid-of-w1"
        join_options = {"token": node_token("for-servers", "uid-of-w1"), "node-label": [label]}
        node.configure(server=f"https://{server.address}:6443", **join_options)
        node.start("node")
        yield server, node  # type: ignore[misc]
    finally:
        for machine in (node, server):
            with suppress(AssertionError):
                machine.stop()


def _wait_for(condition: object, tries: int = 600) -> None:
    import time

    for _ in range(tries):
        if condition():  # type: ignore[operator]
            return
        time.sleep(0.05)
    raise AssertionError("the condition was not met in time")


async def eventually(look: object, tries: int = 400) -> Object:
    for _ in range(tries):
        with suppress(StatusError, OSError):
            if found := await look():  # type: ignore[operator]
                return found  # type: ignore[no-any-return]
        await asyncio.sleep(0.05)
    raise AssertionError("the condition was not met in time")


@pytest.fixture
async def admin(machines: tuple[Machine, Machine]) -> AsyncIterator[Client]:
    client = Client(HttpTransport(load(machines[0].kubeconfig)))
    yield client
    await client.close()


def ready(node: Object) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"].get("conditions") or ())


async def test_both_machines_become_nodes_that_kubectl_sees_ready(
    machines: tuple[Machine, Machine], admin: Client
) -> None:
    server, node = machines

    async def both() -> bool:
        return all([ready(await admin.get(NODES, each.name)) for each in machines])

    await eventually(both)
    command = [peer("kubectl"), "--kubeconfig", server.kubeconfig, "get", "nodes", "-o", "wide", "--no-headers"]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    rows = {line.split()[0]: line.split() for line in output.splitlines()}
    assert rows["s1"][1:3] == ["Ready", "control-plane,etcd"]
    assert rows["w1"][1] == "Ready"
    assert rows["w1"][5] == node.address
    assert rows["s1"][4] == rows["w1"][4] == "v1.36.3+herder1"


async def test_nodes_have_the_labels_and_provider_ids_of_their_machines(admin: Client) -> None:
    node = await admin.get(NODES, "s1")
    assert node["metadata"]["labels"]["zone"] == "one"
    assert node["spec"]["providerID"] == "herder://s1"


async def test_a_deleted_node_registers_again(admin: Client) -> None:
    before = await eventually(lambda: admin.get(NODES, "s1"))
    await admin.delete(NODES, "s1")
    recreated = await eventually(lambda: _node_with_another_uid(admin, before["metadata"]["uid"]), tries=400)
    assert recreated["metadata"]["labels"]["zone"] == "one"


async def _node_with_another_uid(admin: Client, uid: str) -> Object | None:
    node = await admin.get(NODES, "s1")
    return node if node["metadata"]["uid"] != uid else None


async def test_a_join_token_grants_only_access_to_nodes(machines: tuple[Machine, Machine], admin: Client) -> None:
    server, _ = machines
    ca = (server.data / "server/tls/ca.crt").read_bytes()
    token = node_token("for-servers", "uid-of-w1")
    joiner = Client(HttpTransport(RestConfig(f"https://{server.address}:6443", ca=ca, token=token)))
    guesser = Client(HttpTransport(RestConfig(f"https://{server.address}:6443", ca=ca, token="for-node")))
    try:
        assert (await joiner.get(NODES, "w1"))["metadata"]["name"] == "w1"
        for forbidden in (joiner.list(SECRETS, namespace="kube-system"), joiner.delete(NODES, "w1")):
            with pytest.raises(Forbidden):
                await forbidden
        with pytest.raises(Unauthorized):
            await guesser.get(NODES, "w1")
    finally:
        await joiner.close()
        await guesser.close()


async def test_manifests_are_applied_on_sighup_and_removed_with_their_file(
    machines: tuple[Machine, Machine], admin: Client
) -> None:
    server, _ = machines
    directory = server.data / "server" / "manifests" / "rancher"
    directory.mkdir(parents=True)
    objects = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}}
        for name in ("one", "two")
    ]
    (directory / "addons.yaml").write_text(yaml.safe_dump_all(objects))
    assert server.process is not None
    server.process.send_signal(1)
    await eventually(lambda: admin.get(CONFIG_MAPS, "two", namespace="default"))

    (directory / "addons.yaml").write_text(yaml.safe_dump_all(objects[:1]))
    server.process.send_signal(1)

    async def is_deleted() -> bool:
        listed = await admin.list(CONFIG_MAPS, namespace="default")
        return not any(each["metadata"]["name"] == "two" for each in listed.items)

    await eventually(is_deleted)
    assert await admin.get(CONFIG_MAPS, "one", namespace="default")


async def test_a_restarted_server_keeps_its_data(machines: tuple[Machine, Machine], admin: Client) -> None:
    server, node = machines
    await admin.create(
        CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept"}}, namespace="default"
    )
    assert server.stop() == 0
    server.start("server")
    await eventually(lambda: admin.get(CONFIG_MAPS, "kept", namespace="default"))

    async def node_is_back() -> bool:
        return ready(await admin.get(NODES, node.name))

    await eventually(node_is_back)
