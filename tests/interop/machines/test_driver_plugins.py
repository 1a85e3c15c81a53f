"""Drivers of rancher-machine are plugins that serve RPC without authentication on the loopback of the Job's host.

Process machines share that loopback. Their users may not read the credentials of other machines.
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from herder.api.capi import kinds as capi
from herder.api.machines.kinds import kinds_of
from herder.engine.client.client import Client
from tests.support.canaries import canary
from tests.support.capi import none_left, wait_until
from tests.support.embedded import HERDER
from tests.support.manager.machines import (
    ENGINES,
    Provider,
    all_created,
    behind_proxy,
    create_cluster,
    create_credential,
    create_machines,
)

NAMESPACE = "plugins"
DROPLET_TOKEN = canary("digitalocean token")
_GET_CONFIG = (
    "2e7f030101075265717565737401ff80000102010d536572766963654d6574686f64010c000103536571010600000021ff80011c"
    "5250435365727665724472697665722e476574436f6e666967526177000aff81030102ff8200000003ff8200"
)
"""A request of Go's net/rpc: RPCServerDriver.GetConfigRaw, with an empty argument."""
_ATTACK = """
import socket, sys
listening = {line.split()[1] for line in open("/proc/net/tcp") if line.split()[3] == "0A"}
for port in map(int, sys.argv[2:]):
    print(port, "is visible" if f"0100007F:{port:04X}" in listening else "is not visible")
    try:
        peer = socket.create_connection(("127.0.0.1", port), 5)
        peer.sendall(b"CONNECT /_goRPC_ HTTP/1.0\\n\\n")
        print(peer.recv(4096))
        peer.sendall(bytes.fromhex(sys.argv[1]))
        print(peer.recv(65536))
    except OSError as error:
        print(error)
print("done")
"""


class SilentProxy:
    """A proxy that never answers: the driver waits for its cloud, as it does for minutes while a machine boots."""

    def __init__(self) -> None:
        self.connected = threading.Event()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self._open.append(self._listener.accept()[0])
                self.connected.set()

    def close(self) -> None:
        self._listener.close()
        for each in self._open:
            each.close()


@pytest.fixture(scope="module")
def proxy() -> Iterator[SilentProxy]:
    proxy = SilentProxy()
    yield proxy
    proxy.close()


@pytest.fixture(scope="module", params=list(ENGINES))
def provider(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, proxy: SilentProxy
) -> Iterator[Provider]:
    with behind_proxy(request.param, tmp_path_factory.mktemp(request.param), proxy.url) as provider:
        yield provider


@pytest.fixture(scope="module")
async def client(provider: Provider) -> AsyncIterator[Client]:
    client = provider.engine.client()
    await create_cluster(client, NAMESPACE, "digitalocean", "process")
    yield client
    await client.close()


async def test_a_process_machine_cannot_ask_the_driver_of_another_for_its_credential(
    provider: Provider, client: Client, proxy: SilentProxy
) -> None:
    kind = kinds_of("process").machine
    await create_machines(client, NAMESPACE, "process", {}, count=1)
    (machine,) = await wait_until(client, kind, NAMESPACE, all_created(1))
    await create_credential(client, NAMESPACE, "droplets", "digitalocean", accessToken=DROPLET_TOKEN)
    fields = {"region": "nyc3", "common": {"cloudCredentialSecretName": "droplets"}}
    proxy.connected.clear()
    await create_machines(client, NAMESPACE, "digitalocean", fields, count=1)
    assert await asyncio.to_thread(proxy.connected.wait, 60), "the driver does not connect to its cloud"
    (droplet,) = await wait_until(client, kinds_of("digitalocean").machine, NAMESPACE, bool)
    ports = listening_ports(droplet["metadata"]["name"])
    output = await asyncio.to_thread(_run_inside, provider, machine["metadata"]["name"], ports)
    assert "done" in output, output
    assert DROPLET_TOKEN not in output, output
    await client.delete(capi.MACHINE_DEPLOYMENT.resource, "process-pool", namespace=NAMESPACE)
    await wait_until(client, kind, NAMESPACE, none_left)


def listening_ports(name: str) -> list[int]:
    """Ports on which processes with this name among their arguments listen. Other tests use the same loopback."""
    inodes = {
        inode for process in Path("/proc").glob("[0-9]*") if _has_argument(process, name) for inode in _sockets(process)
    }
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    return [int(words[1].partition(":")[2], 16) for words in lines if words[3] == "0A" and words[9] in inodes]


def _has_argument(process: Path, name: str) -> bool:
    with suppress(OSError):
        return name.encode() in (process / "cmdline").read_bytes()
    return False


def _sockets(process: Path) -> Iterator[str]:
    with suppress(OSError):
        for each in (process / "fd").iterdir():
            with suppress(OSError):
                yield os.readlink(each).removeprefix("socket:[").removesuffix("]")


def _run_inside(provider: Provider, machine: str, ports: list[int]) -> str:
    program = base64.b64encode(_ATTACK.encode()).decode()
    words = " ".join((_GET_CONFIG, *map(str, ports)))
    command = f"python3 -c 'import base64; exec(base64.b64decode(\"{program}\"))' {words}"
    variables = os.environ | {"KUBECONFIG": str(provider.engine.kubeconfig)}
    done = subprocess.run(
        [HERDER, "ssh", machine, "-n", NAMESPACE, "--", command],
        env=variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr
