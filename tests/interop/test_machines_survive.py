"""Whatever is killed, whenever: no server is leaked, none is made twice, none is lost while it lives."""

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
from herder.machine.errors import MachineError
from herder.machine.host.client import HostClient
from tests.support.canaries import canary
from tests.support.ec2 import IMAGE, REGION, ZONE, Ec2
from tests.support.machines import (
    Provider,
    all_created,
    embedded,
    put_up_cluster,
    put_up_credential,
    put_up_machines,
)

NAMESPACE = "pasture"
SEEDS = range(1, 1 + int(os.environ.get("HERDER_SEEDS", "1")))  # the long run asks for more
MACHINES = 3
PATIENCE = 180.0
KILLED_PROGRAMS = 3


@pytest.fixture(scope="module")
def ec2() -> Iterator[Ec2]:
    with Ec2() as made:
        yield made


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    with embedded(tmp_path_factory.mktemp("embedded")) as made:
        yield made


@pytest.fixture(scope="module")
async def client(provider: Provider) -> AsyncIterator[Client]:
    made = provider.engine.client()
    await put_up_cluster(made, NAMESPACE, "amazonec2", "process")
    await put_up_credential(
        made, NAMESPACE, "aws", "amazonec2", accessKey="AKIDEXAMPLE", secretKey=canary("aws secret key")
    )
    yield made
    await made.close()


async def objects(client: Client, kind: Kind) -> list[Object]:
    return (await client.list_all(kind.resource, namespace=NAMESPACE)).items


async def eventually(client: Client, kind: Kind, wanted: Callable[[list[Object]], bool]) -> list[Object]:
    """By asking again and again: what is asked may be dead for a while."""
    found: list[Object] = []
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    found = await objects(client, kind)
                    if wanted(found):
                        return found
                except (StatusError, OSError):
                    pass
                await asyncio.sleep(0.1)
    except TimeoutError:
        told = "\n".join(f"{one['metadata']['name']}: {one.get('status')}" for one in found)
        raise AssertionError(f"{kind.plural} never became as wanted:\n{told}") from None


async def deleted(client: Client, kind: Kind, name: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await client.delete(kind.resource, name, namespace=NAMESPACE)
                return
            except StatusError as error:
                if error.code == 404:
                    return
                await asyncio.sleep(0.1)


class Killer:
    """Ends processes at moments that a seed chooses, for as long as something else goes on."""

    def __init__(self, provider: Provider, seed: int) -> None:
        self._provider = provider
        self._random = Random(seed)
        self.killed = 0

    async def manager(self) -> None:
        """API server, controllers and runner, which are one process here; the Jobs that run go on."""
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
                told = await asyncio.to_thread(HostClient.of(self._provider.host_state).version)
                os.kill(told["pid"], signal.SIGKILL)
                self.killed += 1
            except (MachineError, ProcessLookupError):
                pass  # it is on its way up

    async def jobs(self) -> None:
        """The machine program itself, in its pods. A pool whose creations fail again and again is tried ever more
        rarely: a few are enough."""
        while self.killed < KILLED_PROGRAMS:
            await asyncio.sleep(self._random.uniform(0.05, 0.5))
            running = machine_programs(self._provider.server.directory)
            if running:
                os.kill(self._random.choice(running), signal.SIGKILL)
                self.killed += 1


def machine_programs(directory: Path) -> list[int]:
    """Those whose API server is ours: others may run on this machine."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
                root = os.readlink(process / "cwd")
            except OSError:
                continue
            if b"herder.machine.entrypoint" in words and root == "/" and _is_below(int(process.name), directory):
                found.append(int(process.name))
    return found


def _is_below(pid: int, directory: Path) -> bool:
    """Whether the process that watches over it was started for this directory."""
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


async def up(client: Client, name: str, driver: str, **fields: str) -> str:
    await put_up_machines(client, NAMESPACE, driver, FIELDS[driver] | fields, count=MACHINES, name=name)
    await asyncio.sleep(0.2)
    return name


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_manager_that_dies_again_and_again_leaks_no_instance(
    provider: Provider, client: Client, ec2: Ec2, seed: int
) -> None:
    ec2.reset()
    killer = Killer(provider, seed)
    name = await up(client, f"managers-{seed}", "amazonec2", endpoint=ec2.url)
    killing = asyncio.ensure_future(killer.manager())
    await asyncio.sleep(6)
    await _stopped(killing, provider)
    machines = await eventually(client, kinds_of("amazonec2").machine, all_created(MACHINES))
    assert len(ec2.instances()) == MACHINES == len(ec2.key_pairs())
    assert {_name(one) for one in ec2.instances()} == {one["metadata"]["name"] for one in machines}
    await deleted(client, capi.MACHINE_DEPLOYMENT, name)
    killing = asyncio.ensure_future(killer.manager())
    await asyncio.sleep(6)
    await _stopped(killing, provider)
    await eventually(client, kinds_of("amazonec2").machine, lambda found: not found)
    await eventually(client, capi.MACHINE_DEPLOYMENT, lambda found: name not in {o["metadata"]["name"] for o in found})
    assert ec2.left() == {}
    assert killer.killed


@pytest.mark.parametrize("seed", SEEDS)
async def test_machine_programs_that_are_killed_leave_nothing_behind_in_the_end(
    provider: Provider, client: Client, ec2: Ec2, seed: int
) -> None:
    """A creation that is cut short fails; its Machine is replaced, and what it made is found and removed."""
    ec2.reset()
    killer = Killer(provider, seed)
    name = await up(client, f"programs-{seed}", "amazonec2", endpoint=ec2.url)
    killing = asyncio.ensure_future(killer.jobs())
    await asyncio.sleep(6)
    await _stopped(killing, provider)
    await eventually(client, kinds_of("amazonec2").machine, all_created(MACHINES))
    assert len(ec2.instances()) == MACHINES == len(ec2.key_pairs())
    assert killer.killed
    await deleted(client, capi.MACHINE_DEPLOYMENT, name)
    killer.killed = 0
    killing = asyncio.ensure_future(killer.jobs())
    await asyncio.sleep(4)
    await _stopped(killing, provider)
    await eventually(client, kinds_of("amazonec2").machine, lambda found: not found)
    assert ec2.left() == {}


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_host_daemon_that_dies_again_and_again_keeps_its_machines(
    provider: Provider, client: Client, seed: int
) -> None:
    killer = Killer(provider, seed)
    name = await up(client, f"daemons-{seed}", "process")
    killing = asyncio.ensure_future(killer.daemon())
    await asyncio.sleep(4)
    await _stopped(killing, provider)
    machines = await eventually(client, kinds_of("process").machine, all_created(MACHINES))
    host = HostClient.of(provider.host_state)
    assert {one["name"] for one in host.machines()} == {one["metadata"]["name"] for one in machines}
    await deleted(client, capi.MACHINE_DEPLOYMENT, name)
    killing = asyncio.ensure_future(killer.daemon())
    await asyncio.sleep(4)
    await _stopped(killing, provider)
    await eventually(client, kinds_of("process").machine, lambda found: not found)
    assert host.machines() == []
    assert list((provider.host_state / "machines").iterdir()) == []
    assert killer.killed


async def _stopped(killing: asyncio.Future[None], provider: Provider) -> None:
    killing.cancel()
    await asyncio.gather(killing, return_exceptions=True)
    process = provider.server.process
    if process is None or process.poll() is not None:
        await asyncio.to_thread(provider.restart)


def _name(instance: Object) -> str:
    return next(tag["Value"] for tag in instance["Tags"] if tag["Key"] == "Name")
