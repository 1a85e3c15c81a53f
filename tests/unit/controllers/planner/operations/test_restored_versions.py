"""Restores with the version of a snapshot: what the planner checks itself, and what it starts if they fail."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from herder.api.rke import names, operations
from herder.api.rke.cluster_spec import encode_spec
from herder.api.rke.distributions import Release, release_in
from herder.api.rke.etcd import restore
from herder.api.rke.kinds import CONTROL_PLANE, ETCD_SNAPSHOT
from herder.sim import loop
from tests.unit.controllers.planner.operations.test_abort import abort, until_phase
from tests.unit.controllers.planner.operations.test_operations import MACHINES, create
from tests.unit.controllers.planner.operations.test_restore import SERVERS, Witness, create_snapshot
from tests.unit.controllers.planner.simulated_cluster import NAME, NAMESPACE, VERSION, SimulatedCluster

NEW = "v1.34.1+k3s1"


async def set_version(cluster: SimulatedCluster, version: str, **spec: Any) -> None:
    """Change the version as the provisioning Cluster's controller does, after admission."""
    annotations = {names.CLUSTER_SPEC: encode_spec({"kubernetesVersion": version})}
    patch = {"metadata": {"annotations": annotations}, "spec": {"kubernetesVersion": version, **spec}}
    await cluster.client.patch(CONTROL_PLANE.resource, NAME, patch, namespace=NAMESPACE)


async def until_ended(cluster: SimulatedCluster) -> operations.Run:
    """Wait for the end of the restore."""

    async def has_ended() -> bool:
        found = operations.Run.of(await cluster.control_plane())
        return found is not None and found.kind == operations.RESTORE and not found.is_active

    await cluster.world.until(has_ended)
    return await until_phase(cluster, "Failed", "Finished")


async def is_recorded(cluster: SimulatedCluster) -> bool:
    return bool(restore.history(await cluster.control_plane()))


async def create_upgraded(cluster: SimulatedCluster, saved: str = VERSION) -> None:
    """A cluster that was upgraded after a snapshot, whose copy of the spec names the version `saved`."""
    await create(cluster)
    await set_version(cluster, VERSION)
    await cluster.world.until(lambda: is_recorded(cluster))
    await set_version(cluster, NEW)
    await cluster.world.until(cluster.is_ready)
    await create_snapshot(cluster)
    metadata = {restore.SPEC_KEY: encode_spec({"kubernetesVersion": saved})}
    file = {"snapshotFile": {"metadata": base64.b64encode(json.dumps(metadata).encode()).decode()}}
    await cluster.client.patch(ETCD_SNAPSHOT.resource, "before", file, namespace=NAMESPACE)


async def releases(cluster: SimulatedCluster, machines: tuple[str, ...] = MACHINES) -> set[Release | None]:
    return {release_in((await cluster.plan(machine)).plan) for machine in machines}


def request(mode: str) -> dict[str, Any]:
    return {"generation": 1, "name": "before", "restoreRKEConfig": mode}


@pytest.mark.parametrize(
    ("saved", "wanted", "mode", "message"),
    [
        (VERSION, NEW, "kubernetesVersion", "the spec of the Cluster is not that of the snapshot"),
        ("v1.33.1+k3s1", "v1.33.1+k3s1", "kubernetesVersion", "the manager does not know the copy of the spec"),
        ("v1.35.0+k3s1", NEW, "none", "is of v1.35.0+k3s1, which is newer than v1.34.1+k3s1"),
        ("v1.24.9+k3s1", NEW, "none", "clusters of v1.25 or later"),
        ("v1.33.4+rke2r1", NEW, "none", "cannot be changed"),
    ],
)
def test_a_restore_that_does_not_fit_the_spec_fails_before_anything_stops(
    saved: str, wanted: str, mode: str, message: str
) -> None:
    """Also if no admission has seen the request, as with --no-webhooks."""

    async def scenario() -> None:
        witness = Witness()
        async with SimulatedCluster(answer=witness) as cluster:
            await create_upgraded(cluster, saved)
            witness.tasks.clear()
            await set_version(cluster, wanted, etcdSnapshotRestore=request(mode))
            ended = await until_ended(cluster)
            assert ended.phase == "Failed"
            assert message in ended.message
            assert not witness.positions(operations.STOP_SERVICES)
            assert await releases(cluster) == {Release(1, 34, 1)}

    loop.run(scenario())


@pytest.mark.parametrize("how", ["failure", "abort"])
def test_servers_start_with_their_own_version_if_the_restore_of_another_one_ends_early(how: str) -> None:
    """An older version might not read the data of a newer one."""

    async def scenario() -> None:
        witness = Witness(fails=operations.RESTORE_SNAPSHOT)
        async with SimulatedCluster(answer=witness) as cluster:
            await create_upgraded(cluster)
            await set_version(cluster, VERSION, etcdSnapshotRestore=request("kubernetesVersion"))
            if how == "abort":
                await abort(cluster, (await until_phase(cluster, "Shutdown")).id)
            ended = await until_ended(cluster)
            assert ended.phase == "Failed"
            assert set(witness.positions(operations.START_SERVICES).values()) == set(SERVERS)
            assert await releases(cluster) == {Release(1, 34, 1)}
            message = await cluster.message()
            await cluster.world.until(lambda: _contains(cluster, f"{VERSION} is lower than {NEW}"))
            assert await releases(cluster) == {Release(1, 34, 1)}, message
            await set_version(cluster, NEW)
            await cluster.world.until(cluster.is_ready)

    loop.run(scenario())


async def _contains(cluster: SimulatedCluster, text: str) -> bool:
    return text in await cluster.message()


def test_a_restore_lowers_the_version_of_all_machines() -> None:
    async def scenario() -> None:
        async with SimulatedCluster(answer=Witness()) as cluster:
            await create_upgraded(cluster)
            await set_version(cluster, VERSION, etcdSnapshotRestore=request("kubernetesVersion"))
            ended = await until_ended(cluster)
            assert ended.phase == "Finished", ended.message
            await cluster.world.until(cluster.is_ready)
            assert (await cluster.control_plane())["status"]["appliedSpec"]["kubernetesVersion"] == VERSION
            assert await releases(cluster) == {Release(1, 33, 4)}

    loop.run(scenario())
