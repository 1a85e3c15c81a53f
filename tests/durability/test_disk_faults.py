"""A full disk and a disk that cannot sync, under a running `herder up`.

A full disk is reported by health checks and survived. After a failed sync the content of the disk is unknown, so the
process exits with an error, and the next start reads what is on the disk.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from herder.engine.client import kubeconfig
from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.meta.errors import NotFound, ServiceUnavailable, StatusError
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.engine.wire import Query, Request
from tests.support.embedded import Embedded

from .power_loss import compiler

CONFIG_MAPS = GroupVersionResource("", "v1", "configmaps")
HEALTH = ("/healthz", "/livez", "/readyz")
_SOURCE = Path(__file__).with_name("disk_fault.c")

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C compiler (build-essential)")


class FaultyDisk:
    def __init__(self, directory: Path) -> None:
        self._fault = directory / "fault"
        self._library = directory / "disk_fault.so"
        command = [str(compiler()), "-O1", "-shared", "-fPIC", "-o", str(self._library), str(_SOURCE), "-ldl"]
        subprocess.run(command, check=True)

    def command(self) -> tuple[str, ...]:
        """The command prefix that runs a program on this disk."""
        return "env", f"LD_PRELOAD={self._library}", f"DISK_FAULT={self._fault}"

    def set_fault(self, fault: str) -> None:
        self._fault.write_text(fault)


@pytest.fixture
def disk(tmp_path: Path) -> FaultyDisk:
    return FaultyDisk(tmp_path)


@pytest.fixture
async def server(tmp_path: Path, disk: FaultyDisk) -> AsyncIterator[Embedded]:
    flags = ("--capi-core=external", "--no-machines", "--no-runner", "--gateway")
    server = Embedded(tmp_path / "data", command_prefix=disk.command(), flags=flags)
    await asyncio.to_thread(server.start)
    yield server
    disk.set_fault("none")
    await asyncio.to_thread(server.kill)


@pytest.fixture
async def transport(server: Embedded) -> AsyncIterator[HttpTransport]:
    transport = HttpTransport(kubeconfig.load(server.kubeconfig))
    yield transport
    await transport.close()


def _config_map(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


async def _health(transport: HttpTransport, path: str) -> tuple[int, bytes]:
    path, _, query = path.partition("?")
    response = await transport.send(Request("GET", path, Query.parse(query), {}, b""))
    return response.status, response.content()


async def test_a_full_disk_is_survived_and_a_failed_sync_ends_the_process(
    server: Embedded, disk: FaultyDisk, transport: HttpTransport
) -> None:
    client = Client(transport)
    await _wait_for_status(transport, "/ping", 200)  # the gateway has written its initial objects, too
    disk.set_fault("full")
    with pytest.raises(ServiceUnavailable):
        await client.create(CONFIG_MAPS, _config_map("refused"), namespace="default")
    for path in HEALTH:
        status, body = await _health(transport, path)
        assert status == 500
        assert b"[-]store failed" in body
    assert (await _health(transport, "/livez/store"))[0] == 500
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "refused", namespace="default")

    disk.set_fault("none")
    await _wait_for_status(transport, "/readyz", 200)
    await client.create(CONFIG_MAPS, _config_map("accepted"), namespace="default")

    disk.set_fault("sync")
    with pytest.raises((StatusError, OSError)):  # a controller's write may have been the first to fail
        await client.create(CONFIG_MAPS, _config_map("doubtful"), namespace="default")
    assert server.process is not None
    assert await asyncio.to_thread(server.process.wait, 60) == 1
    assert "the store cannot commit" in server.log()

    disk.set_fault("none")
    await asyncio.to_thread(server.start)
    again = HttpTransport(kubeconfig.load(server.kubeconfig))
    names = [item["metadata"]["name"] for item in (await Client(again).list(CONFIG_MAPS, namespace="default")).items]
    assert ("accepted" in names, "refused" in names) == (True, False)
    await again.close()


async def _wait_for_status(transport: HttpTransport, path: str, wanted: int) -> None:
    async with asyncio.timeout(60):
        while (await _health(transport, path))[0] != wanted:
            await asyncio.sleep(0.05)
