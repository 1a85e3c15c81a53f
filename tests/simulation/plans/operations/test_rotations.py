"""Rotations of certificates and encryption keys on simulated servers of every distribution.

A client reads Secrets all the time, through every server: it must not notice a rotation. In each phase, the manager,
the agent or the machine of a server crashes once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from herder.api.capi.kinds import SECRET
from herder.api.rke import names, operations
from herder.api.rke.etcd.encryption import KeyState, keys_secret
from herder.api.rke.kinds import ETCD_SNAPSHOT, PLAN_SECRET
from herder.api.rke.node.plan_secret import PlanSecret
from herder.api.rke.services import SERVICES
from herder.controllers.planner.distributions.embedded import Embedded
from herder.controllers.planner.distributions.kubeadm.distribution import Kubeadm
from herder.engine.meta.errors import NotFound
from herder.sim.host import shell
from herder.sim.host.certificates import leaves
from herder.sim.host.command import Command
from herder.sim.host.disk import Certificate, Snapshot
from herder.sim.nodes import SimulatedNode
from herder.sim.provisioned import NAME
from tests.simulation.plans.operations.operated_cluster import HOUR, OperatedCluster, run

VERSIONS = {"v1.34.1+k3s1": 3, "v1.34.1+rke2r1": 3, "v1.34.1+kubeadm1": 3, "v1.34.1+herder1": 1}
OWNED = {version: servers for version, servers in VERSIONS.items() if "kubeadm" in version or "herder" in version}
"""Versions of distributions whose keys the manager owns, and their number of servers."""
OFF_SECONDS = 60.0

Crash = Callable[[OperatedCluster], Awaitable[None]]


# --- judges -----------------------------------------------------------------------------------------------------------


class Reader:
    """Reads Secrets through every running server."""

    def __init__(self, cluster: OperatedCluster) -> None:
        self._cluster = cluster
        self.reads, self.unreadable = 0, set[str]()

    async def run(self) -> None:
        while True:
            serving = [node for node in self._cluster.servers if node.running]
            self.reads += len(serving)
            self.unreadable |= {node.name for node in serving if not node.reads_secrets}
            await asyncio.sleep(2)


@asynccontextmanager
async def reading(cluster: OperatedCluster) -> AsyncIterator[None]:
    reader = Reader(cluster)
    task = asyncio.ensure_future(reader.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert reader.reads
    assert not reader.unreadable, f"Secrets cannot be read on {reader.unreadable}"


def certificates(cluster: OperatedCluster) -> dict[tuple[str, str], Certificate]:
    """All certificates of all machines."""
    return {
        (node.name, path): node.disk.files[f"{path}.crt"]
        for node in cluster.simulation.nodes
        for path, _ in leaves(node)
        if f"{path}.crt" in node.disk.files
    }


def keys_in_use(cluster: OperatedCluster) -> set[str]:
    etcd = cluster.simulation.sim.downstream.etcd
    assert etcd is not None
    return set(etcd.bootstrap.secret_keys)


def loaded_keys(node: SimulatedNode) -> tuple[str, ...]:
    assert node.service.loaded is not None
    return node.service.loaded.keys


def plans(cluster: OperatedCluster) -> list[PlanSecret]:
    return [PlanSecret(secret) for secret in cluster.simulation.invariants.objects[PLAN_SECRET].values()]


async def key_state(cluster: OperatedCluster) -> KeyState:
    state = KeyState.of(await cluster.control_plane())
    assert state is not None
    return state


async def stored_keys(cluster: OperatedCluster) -> set[str]:
    return set((await cluster.simulation.sim.get(SECRET, keys_secret(NAME)))["data"])


# --- crashes ----------------------------------------------------------------------------------------------------------


async def _crash_manager(cluster: OperatedCluster) -> None:
    cluster.simulation.sim.world.crash()


async def _kill_agents(cluster: OperatedCluster) -> None:
    for node in cluster.simulation.nodes:
        node.kill_agent()


async def _crash_machine(cluster: OperatedCluster) -> None:
    """The machine that has a task now, or a server."""
    busy = [plan.labels[names.MACHINE_NAME] for plan in plans(cluster) if plan.is_moving]
    nodes = [node for node in cluster.simulation.nodes if cluster.simulation.machine_of(node) in busy]
    node = next(iter(nodes), cluster.servers[0])
    node.power_off()
    asyncio.get_running_loop().call_later(OFF_SECONDS, node.boot)


CRASHES: dict[str, Crash] = {"manager": _crash_manager, "agent": _kill_agents, "machine": _crash_machine}


async def crash_in_each_phase(cluster: OperatedCluster, kind: str, crash: Crash, phases: set[str]) -> None:
    """Until the operation has ended; `phases` collects where it has crashed."""
    while True:
        found = operations.Run.of(await cluster.control_plane())
        if found is not None and found.kind == kind:
            if not found.is_active:
                return
            if found.phase not in phases:
                phases.add(found.phase)
                await asyncio.sleep(cluster.simulation.random.uniform(0.1, 10))
                await crash(cluster)
        await asyncio.sleep(2)


async def run_with_crashes(cluster: OperatedCluster, kind: str, crash: Crash) -> tuple[operations.Run, set[str]]:
    phases: set[str] = set()
    crashes = asyncio.ensure_future(crash_in_each_phase(cluster, kind, crash, phases))
    ended = await cluster.run(kind)
    await crashes
    return ended, phases


# --- tests ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("actor", CRASHES)
@pytest.mark.parametrize("version", VERSIONS)
def test_rotations_survive_a_crash_in_each_phase(version: str, actor: str) -> None:
    """A rotation that fails is repeated by the user, and the cluster serves meanwhile."""

    async def scenario(cluster: OperatedCluster) -> None:
        before, used = certificates(cluster), keys_in_use(cluster)
        async with reading(cluster):
            keys, phases = await run_with_crashes(cluster, operations.ENCRYPTION_KEYS, CRASHES[actor])
            assert len(phases) == 7 or keys.phase == "Failed", phases
            if keys.phase != "Done":
                keys = await cluster.run(operations.ENCRYPTION_KEYS, generation=2)
            assert keys.phase == "Done", keys.message
            assert not keys_in_use(cluster) & used
            rotated, phases = await run_with_crashes(cluster, operations.CERTIFICATES, CRASHES[actor])
            assert "Rotate" in phases
            if rotated.phase != "Finished":
                rotated = await cluster.run(operations.CERTIFICATES, generation=2)
            assert rotated.phase == "Finished", rotated.message
        after = certificates(cluster)
        assert after.keys() == before.keys()
        assert all(after[each].serial != old.serial for each, old in before.items())
        assert len({loaded_keys(node) for node in cluster.servers}) == 1
        assert not any(operations.task_instructions(plan.plan) for plan in plans(cluster))

    run(version, scenario, servers=VERSIONS[version])


@pytest.mark.parametrize("version", ["v1.34.1+k3s1", "v1.34.1+kubeadm1"])
def test_a_dead_worker_is_skipped_by_a_certificate_rotation(version: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        worker, before = cluster.first_worker, certificates(cluster)
        worker.power_off()
        rotated = await cluster.run(operations.CERTIFICATES, settles=False)
        assert rotated.phase == "Finished", rotated.message
        assert rotated.skipped == (cluster.simulation.machine_of(worker),)
        after = certificates(cluster)
        assert all(after[each].serial != old.serial for each, old in before.items() if each[0] != worker.name)
        worker.boot()
        await cluster.simulation.until_settled()
        rotated = await cluster.run(operations.CERTIFICATES, generation=2)
        assert (rotated.phase, rotated.skipped) == ("Finished", ())
        last = certificates(cluster)
        assert all(last[each].serial != old.serial for each, old in before.items())
        assert not any(operations.task_instructions(plan.plan) for plan in plans(cluster))

    run(version, scenario, servers=VERSIONS[version], workers=2)


@pytest.mark.parametrize("version", OWNED)
def test_only_certificates_of_the_named_services_are_new(version: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        distribution = "kubeadm" if "kubeadm" in version else "embedded"
        seen: set[tuple[str, str]] = set()
        for generation, service in enumerate(SERVICES[distribution], start=1):
            before = certificates(cluster)
            rotated = await cluster.run(operations.CERTIFICATES, generation=generation, services=[service])
            assert rotated.phase == "Finished", rotated.message
            after = certificates(cluster)
            changed = {each for each, old in before.items() if after[each].serial != old.serial}
            assert changed, service
            assert not changed & seen, service
            seen |= changed
        assert seen == certificates(cluster).keys()

    run(version, scenario, servers=OWNED[version])


@pytest.mark.parametrize("version", OWNED)
def test_keys_that_a_snapshot_needs_are_kept_until_it_is_gone(version: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        assert (await key_state(cluster)).loaded == (1,), "a new cluster has a key from the start"
        saved = await cluster.run(operations.SNAPSHOT)
        assert saved.phase == "Finished", saved.message
        async with reading(cluster):
            rotated = await cluster.run(operations.ENCRYPTION_KEYS)
            assert rotated.phase == "Done", rotated.message
        assert await stored_keys(cluster) == {"key-1", "key-2"}
        assert (await key_state(cluster)).loaded == (2,)
        sim = cluster.simulation.sim
        for each in await sim.all(ETCD_SNAPSHOT):
            await sim.world.client.delete(
                ETCD_SNAPSHOT.resource, each["metadata"]["name"], namespace=each["metadata"]["namespace"]
            )

        async def are_gone() -> bool:
            return not await sim.all(ETCD_SNAPSHOT)

        await sim.world.until(are_gone, within=HOUR)
        await cluster.simulation.until_settled()
        again = await cluster.run(operations.ENCRYPTION_KEYS, generation=2)
        assert again.phase == "Done", again.message
        assert await stored_keys(cluster) == {"key-3"}
        assert (await key_state(cluster)).stored == (3,)

    run(version, scenario, servers=OWNED[version])


@pytest.mark.parametrize("version", OWNED)
def test_the_status_lists_no_key_that_is_deleted_if_the_last_phase_fails(version: str) -> None:
    """A restore of a file without an object loads all keys of the status. If one is missing, no plan is written."""

    async def scenario(cluster: OperatedCluster) -> None:
        async def is_in_last_phase() -> bool:
            found = operations.active_run(await cluster.control_plane())
            return found is not None and found.phase == "RestartCluster"

        await cluster.simulation.sim.edit({"rkeConfig": {operations.ENCRYPTION_KEYS: {"generation": 1}}})
        await cluster.simulation.sim.world.until(is_in_last_phase, within=HOUR)
        server = cluster.servers[-1]
        server.line.cut()
        failed = await cluster.run(operations.ENCRYPTION_KEYS, settles=False)
        assert failed.phase == "Failed", failed.phase
        stored = (await key_state(cluster)).stored
        assert {f"key-{each}" for each in stored} <= await stored_keys(cluster)
        server.line.heal()
        await cluster.simulation.until_settled()
        again = await cluster.run(operations.ENCRYPTION_KEYS, generation=2)
        assert again.phase == "Done", again.message
        assert await stored_keys(cluster) == {"key-3"}
        assert (await key_state(cluster)).stored == (3,)

    run(version, scenario, servers=OWNED[version])


@pytest.mark.parametrize("version", OWNED)
def test_keys_are_kept_for_snapshots_that_servers_no_longer_list(version: str) -> None:
    """The directory of a server is empty: its disk is lost, or not mounted. Copies of its files may exist."""

    async def scenario(cluster: OperatedCluster) -> None:
        saved = await cluster.run(operations.SNAPSHOT)
        assert saved.phase == "Finished", saved.message
        disk = cluster.servers[0].disk
        lost = {path: disk.files.pop(path) for path, found in [*disk.files.items()] if isinstance(found, Snapshot)}
        saved = await cluster.run(operations.SNAPSHOT, generation=2)
        assert saved.phase == "Finished", saved.message
        rotated = await cluster.run(operations.ENCRYPTION_KEYS)
        assert rotated.phase == "Done", rotated.message
        assert "key-1" in await stored_keys(cluster)
        (missing,) = await missing_snapshots(cluster)
        assert [missing] == [path.rpartition("/")[2] for path in lost]
        disk.files |= lost
        saved = await cluster.run(operations.SNAPSHOT, generation=3)
        assert saved.phase == "Finished", saved.message
        assert await missing_snapshots(cluster) == []

    run(version, scenario, servers=OWNED[version])


async def missing_snapshots(cluster: OperatedCluster) -> list[str]:
    found = await cluster.simulation.sim.all(ETCD_SNAPSHOT)
    return [each["snapshotFile"]["name"] for each in found if (each.get("status") or {}).get("missing")]


@pytest.mark.parametrize("version", OWNED)
def test_a_cluster_without_keys_of_the_manager_gets_them_with_its_first_rotation(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then its plans are those of earlier versions, so an upgrade of the manager restarts nothing."""
    for distribution in (Kubeadm, Embedded):
        monkeypatch.setattr(distribution, "manages_keys", False)  # as in earlier versions of the manager

    async def scenario(cluster: OperatedCluster) -> None:
        before = {plan.name: plan.plan_bytes for plan in plans(cluster)}
        monkeypatch.undo()
        cluster.simulation.sim.world.crash()
        await asyncio.sleep(600)
        assert {plan.name: plan.plan_bytes for plan in plans(cluster)} == before
        with pytest.raises(NotFound):
            await stored_keys(cluster)
        starts = {node.name: node.starts for node in cluster.servers}
        async with reading(cluster):
            rotated = await cluster.run(operations.ENCRYPTION_KEYS)
        assert rotated.phase == "Done", rotated.message
        assert (await key_state(cluster)).loaded == (1,)
        assert len(keys_in_use(cluster)) == 1
        assert {node.name: node.starts - starts[node.name] for node in cluster.servers} == {
            node.name: 3 for node in cluster.servers
        }

    run(version, scenario, servers=OWNED[version])


# --- rotations that were interrupted ----------------------------------------------------------------------------------


async def k3s(node: SimulatedNode, program: str, *arguments: str) -> None:
    """Run a command on a server, as a user would."""
    done = await shell.execute(Command(node, "sh", (), {}), program, *arguments)
    assert done.exit_code == 0, done.stderr


INTERRUPTED: dict[str, tuple[str, ...]] = {
    "prepare": ("prepare",),
    "rotate": ("prepare", "restart", "rotate"),
    "reencrypt": ("prepare", "restart", "rotate", "restart", "reencrypt"),
}
"""The steps that a rotation has done before it ended, by the last."""


@pytest.mark.parametrize("on_leader", [True, False])
@pytest.mark.parametrize("last", INTERRUPTED)
@pytest.mark.parametrize("version", [version for version in VERSIONS if version not in OWNED])
def test_a_rotation_completes_one_that_was_interrupted(version: str, last: str, on_leader: bool) -> None:
    """Servers refuse a second `prepare`, and every step while their keys differ."""

    async def scenario(cluster: OperatedCluster) -> None:
        runtime, used = "k3s" if "k3s" in version else "rke2", keys_in_use(cluster)
        leader = cluster.servers[0 if on_leader else 1]
        async with reading(cluster):
            for step in INTERRUPTED[last]:
                if step != "restart":
                    await k3s(leader, runtime, "secrets-encrypt", step)
                    continue
                for node in cluster.servers:
                    await k3s(node, "systemctl", "restart", node.service.unit)
            await asyncio.sleep(60)
            rotated = await cluster.run(operations.ENCRYPTION_KEYS)
        assert rotated.phase == "Done", rotated.message
        assert not keys_in_use(cluster) & used
        assert len({loaded_keys(node) for node in cluster.servers}) == 1
        assert not any(operations.task_instructions(plan.plan) for plan in plans(cluster))

    run(version, scenario, servers=VERSIONS[version])
