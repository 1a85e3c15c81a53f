"""Whatever is killed, at any time: no instance is leaked, created twice, or lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from herder.api.capi import kinds as capi
from herder.api.machines.kinds import kinds_of
from herder.engine.client.client import Client
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import Kind, Object
from herder.machine.errors import MachineError, Unreachable
from herder.machine.host.client import HostClient
from tests.support.canaries import canary
from tests.support.cloud.ec2 import IMAGE, REGION, ZONE, Ec2
from tests.support.manager.machines import (
    Provider,
    all_created,
    create_cluster,
    create_credential,
    create_machines,
    embedded,
)

NAMESPACE = "pasture"
SEEDS = range(1, 1 + int(os.environ.get("HERDER_SEEDS", "1")))  # the long run sets more
MACHINES = 3
TIMEOUT = 180.0
KILLED_PROGRAMS = 3


@pytest.fixture(scope="module")
def ec2() -> Iterator[Ec2]:
    with Ec2() as ec2:
        yield ec2


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    with embedded(tmp_path_factory.mktemp("embedded")) as provider:
        yield provider


@pytest.fixture(scope="module")
async def client(provider: Provider) -> AsyncIterator[Client]:
    client = provider.engine.client()
    await create_cluster(client, NAMESPACE, "amazonec2", "process")
    await create_credential(
        client, NAMESPACE, "aws", "amazonec2", accessKey="AKIDEXAMPLE", secretKey=canary("aws secret key")
    )
    yield client
    await client.close()


async def objects(client: Client, kind: Kind) -> list[Object]:
    return (await client.list_all(kind.resource, namespace=NAMESPACE)).items


async def eventually(client: Client, kind: Kind, wanted: Callable[[list[Object]], bool]) -> list[Object]:
    """Poll until the objects satisfy `wanted`; the API server may be down for a while."""
    found: list[Object] = []
    try:
        async with asyncio.timeout(TIMEOUT):
            while True:
                try:
                    found = await objects(client, kind)
                    if wanted(found):
                        return found
                except (StatusError, OSError):
                    pass
                await asyncio.sleep(0.1)
    except TimeoutError:
        statuses = "\n".join(f"{one['metadata']['name']}: {one.get('status')}" for one in found)
        raise AssertionError(f"{kind.plural} did not reach the expected state in time:\n{statuses}") from None


async def delete_with_retry(client: Client, kind: Kind, name: str) -> None:
    async with asyncio.timeout(TIMEOUT):
        while True:
            try:
                await client.delete(kind.resource, name, namespace=NAMESPACE)
                return
            except StatusError as error:
                if error.code == 404:
                    return
                await asyncio.sleep(0.1)


class Killer:
    """Kills processes at random times from a seed, while other steps run."""

    def __init__(self, provider: Provider, seed: int) -> None:
        self._provider = provider
        self._random = Random(seed)
        self.killed = 0

    async def manager(self) -> None:
        """The API server, controllers and runner, which are one process here; running Jobs continue."""
        while True:
            await asyncio.sleep(self._random.uniform(0.2, 2.5))
            await asyncio.to_thread(self._provider.crash)
            await asyncio.sleep(self._random.uniform(0.0, 1.0))
            await asyncio.to_thread(self._provider.restart)
            self.killed += 1

    async def daemon(self) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(0.05, 0.6))
            try:
                reported = await asyncio.to_thread(HostClient.of(self._provider.host_state).version)
                os.kill(reported["pid"], signal.SIGKILL)
                self.killed += 1
            except (MachineError, ProcessLookupError):
                pass  # it is starting

    async def jobs(self) -> None:
        """The machine program in its pods. A few kills suffice: a pool whose creations fail repeatedly is retried ever
        less.
        """
        while self.killed < KILLED_PROGRAMS:
            await asyncio.sleep(self._random.uniform(0.05, 0.5))
            running = machine_programs(self._provider.server.directory)
            if running:
                os.kill(self._random.choice(running), signal.SIGKILL)
                self.killed += 1


def machine_programs(directory: Path) -> list[int]:
    """Machine programs of this test's API server: others may run on this host."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                arguments = (process / "cmdline").read_bytes().split(b"\0")
                root = os.readlink(process / "cwd")
            except OSError:
                continue
            if b"herder.machine.entrypoint" in arguments and root == "/" and _is_below(int(process.name), directory):
                found.append(int(process.name))
    return found


def _is_below(pid: int, directory: Path) -> bool:
    """Whether an ancestor of the process was started for this directory."""
    while pid > 1:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
            files = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            return False
        if any(file.startswith(str(directory)) for file in files):
            return True
        pid = int(stat.rpartition(")")[2].split()[1])
    return False


FIELDS: dict[str, Object] = {
    "amazonec2": {"region": REGION, "ami": IMAGE, "zone": ZONE, "common": {"cloudCredentialSecretName": "aws"}},
    "process": {},
}


async def create_pool(client: Client, name: str, driver: str, **fields: str) -> str:
    await create_machines(client, NAMESPACE, driver, FIELDS[driver] | fields, count=MACHINES, name=name)
    await asyncio.sleep(0.2)
    return name


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_repeatedly_killed_manager_leaks_no_instance(
    provider: Provider, client: Client, ec2: Ec2, seed: int
) -> None:
    ec2.reset()
    killer = Killer(provider, seed)
    name = await create_pool(client, f"managers-{seed}", "amazonec2", endpoint=ec2.url)
    killing = asyncio.ensure_future(killer.manager())
    await asyncio.sleep(6)
    await _stop_killing(killing, provider)
    machines = await eventually(client, kinds_of("amazonec2").machine, all_created(MACHINES))
    assert len(ec2.instances()) == MACHINES == len(ec2.key_pairs())
    assert {_name(one) for one in ec2.instances()} == {one["metadata"]["name"] for one in machines}
    await delete_with_retry(client, capi.MACHINE_DEPLOYMENT, name)
    killing = asyncio.ensure_future(killer.manager())
    await asyncio.sleep(6)
    await _stop_killing(killing, provider)
    await eventually(client, kinds_of("amazonec2").machine, lambda found: not found)
    await eventually(client, capi.MACHINE_DEPLOYMENT, lambda found: name not in {o["metadata"]["name"] for o in found})
    assert ec2.leftovers() == {}
    assert killer.killed


@pytest.mark.parametrize("seed", SEEDS)
async def test_killed_machine_programs_leave_nothing_behind(
    provider: Provider, client: Client, ec2: Ec2, seed: int
) -> None:
    """An interrupted creation fails; its Machine is replaced, and its resources are found and deleted."""
    ec2.reset()
    killer = Killer(provider, seed)
    name = await create_pool(client, f"programs-{seed}", "amazonec2", endpoint=ec2.url)
    killing = asyncio.ensure_future(killer.jobs())
    await asyncio.sleep(6)
    await _stop_killing(killing, provider)
    await eventually(client, kinds_of("amazonec2").machine, all_created(MACHINES))
    assert len(ec2.instances()) == MACHINES == len(ec2.key_pairs())
    assert killer.killed
    await delete_with_retry(client, capi.MACHINE_DEPLOYMENT, name)
    killer.killed = 0
    killing = asyncio.ensure_future(killer.jobs())
    await asyncio.sleep(4)
    await _stop_killing(killing, provider)
    await eventually(client, kinds_of("amazonec2").machine, lambda found: not found)
    assert ec2.leftovers() == {}


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_repeatedly_killed_host_daemon_keeps_its_machines(
    provider: Provider, client: Client, seed: int
) -> None:
    killer = Killer(provider, seed)
    name = await create_pool(client, f"daemons-{seed}", "process")
    killing = asyncio.ensure_future(killer.daemon())
    await asyncio.sleep(4)
    await _stop_killing(killing, provider)
    machines = await eventually(client, kinds_of("process").machine, all_created(MACHINES))
    host = HostClient.of(provider.host_state)
    assert await hosted(host) == {one["metadata"]["name"] for one in machines}
    await delete_with_retry(client, capi.MACHINE_DEPLOYMENT, name)
    killing = asyncio.ensure_future(killer.daemon())
    await asyncio.sleep(4)
    await _stop_killing(killing, provider)
    await eventually(client, kinds_of("process").machine, lambda found: not found)
    assert await hosted(host) == set()
    assert list((provider.host_state / "machines").iterdir()) == []
    assert killer.killed


async def hosted(host: HostClient) -> set[str]:
    """The machines of the host. The manager restarts a daemon that was killed, which takes a moment."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            try:
                return {one["name"] for one in await asyncio.to_thread(host.machines)}
            except Unreachable:
                await asyncio.sleep(0.1)


async def _stop_killing(killing: asyncio.Future[None], provider: Provider) -> None:
    killing.cancel()
    await asyncio.gather(killing, return_exceptions=True)
    process = provider.server.process
    if process is None or process.poll() is not None:
        await asyncio.to_thread(provider.restart)


def _name(instance: Object) -> str:
    return next(tag["Value"] for tag in instance["Tags"] if tag["Key"] == "Name")
