"""Restores of snapshots from before a rotation of encryption keys and of certificates, on all distributions."""

from __future__ import annotations

import base64
import json

import pytest

from herder.api.capi.kinds import SECRET
from herder.api.rke import operations
from herder.api.rke.etcd.encryption import SNAPSHOT_METADATA
from herder.api.rke.kinds import ETCD_SNAPSHOT
from tests.simulation.plans.operations.operated_cluster import OperatedCluster, run
from tests.simulation.plans.operations.test_rotations import (
    OWNED,
    VERSIONS,
    certificates,
    key_state,
    keys_in_use,
    stored_keys,
)
from tests.support.builders import new_manifest


async def save(cluster: OperatedCluster) -> str:
    saved = await cluster.run(operations.SNAPSHOT)
    assert saved.phase == "Finished", saved.message
    return str((await cluster.simulation.sim.all(ETCD_SNAPSHOT))[-1]["metadata"]["name"])


async def write_secret(cluster: OperatedCluster, name: str) -> None:
    await cluster.workload.create(SECRET.resource, new_manifest(SECRET, name, "default"), namespace="default")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_snapshot_from_before_both_rotations_is_restored_and_both_can_be_repeated(version: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        await write_secret(cluster, "old")
        await cluster.write("before")
        name, old_keys, old_certificates = await save(cluster), keys_in_use(cluster), certificates(cluster)
        rotated = await cluster.run(operations.ENCRYPTION_KEYS)
        assert rotated.phase == "Done", rotated.message
        renewed = await cluster.run(operations.CERTIFICATES)
        assert renewed.phase == "Finished", renewed.message
        assert not keys_in_use(cluster) & old_keys
        await cluster.write("after")
        restored = await cluster.run(operations.RESTORE, name=name)
        assert restored.phase == "Finished", restored.message
        assert (await cluster.has("before"), await cluster.has("after")) == (True, False)
        if "herder" not in version:  # an embedded server encrypts all Secrets again when it starts
            assert keys_in_use(cluster) >= old_keys
        assert all(node.reads_secrets for node in cluster.servers)
        await cluster.workload.get(SECRET.resource, "old", namespace="default")
        assert all(each not in old_certificates.values() for each in certificates(cluster).values())
        again = await cluster.run(operations.ENCRYPTION_KEYS, generation=2)
        assert again.phase == "Done", again.message
        assert not keys_in_use(cluster) & old_keys
        renewed = await cluster.run(operations.CERTIFICATES, generation=2)
        assert renewed.phase == "Finished", renewed.message
        assert all(node.reads_secrets for node in cluster.servers)

    run(version, scenario, servers=VERSIONS[version])


@pytest.mark.parametrize("version", OWNED)
def test_servers_load_the_key_of_the_snapshot_beside_the_newest(version: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        name = await save(cluster)
        rotated = await cluster.run(operations.ENCRYPTION_KEYS)
        assert rotated.phase == "Done", rotated.message
        assert (await key_state(cluster)).loaded == (2,)
        restored = await cluster.run(operations.RESTORE, name=name)
        assert restored.phase == "Finished", restored.message
        state = await key_state(cluster)
        assert (set(state.loaded), state.loaded[0]) == ({1, 2}, 2)
        assert await stored_keys(cluster) == {"key-1", "key-2"}

    run(version, scenario, servers=OWNED[version])


@pytest.mark.parametrize("version", OWNED)
def test_a_restore_whose_key_is_lost_stops_nothing(version: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        name = await save(cluster)
        sim = cluster.simulation.sim
        file = (await sim.get(ETCD_SNAPSHOT, name))["snapshotFile"]
        metadata = json.loads(base64.b64decode(file["metadata"])) | {SNAPSHOT_METADATA: "9"}
        lost = {"metadata": base64.b64encode(json.dumps(metadata).encode()).decode()}
        await sim.patch(ETCD_SNAPSHOT, name, {"snapshotFile": lost})
        await cluster.write("after")
        starts = {node.name: node.starts for node in cluster.servers}
        failed = await cluster.run(operations.RESTORE, name=name)
        assert (failed.phase, "is encrypted with key-9, which Secret" in failed.message) == ("Failed", True)
        assert await cluster.has("after")
        assert {node.name: node.starts for node in cluster.servers} == starts

    run(version, scenario, servers=OWNED[version])
