"""Rotations of certificate authorities on simulated servers of K3s and RKE2.

A judge checks at each start of a machine that all running machines accept each other's certificates.
"""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from herder.api.rke import operations
from herder.api.rke.kinds import ETCD_SNAPSHOT
from herder.api.rke.names import SNAPSHOT_AUTHORITIES
from herder.api.rke.services import NO_AUTHORITY_ROTATION
from herder.controllers.planner.distributions.lookup import distribution_of
from herder.controllers.planner.operations.certificates import AUTHORITIES as AUTHORITIES_OPERATION
from herder.controllers.planner.operations.interface import OperationScope
from herder.engine.meta.errors import Invalid
from herder.sim.host import shell
from herder.sim.host.certificates import AUTHORITIES
from herder.sim.host.command import Command
from tests.simulation.plans.operations.operated_cluster import VERSIONS, OperatedCluster, run
from tests.simulation.plans.operations.test_rotations import (
    CRASHES,
    certificates,
    plans,
    reading,
    run_with_crashes,
)

SERVERS = 3


def authorities(cluster: OperatedCluster) -> dict[str, int]:
    """Serials of the CAs that new machines get."""
    etcd = cluster.simulation.sim.downstream.etcd
    assert etcd is not None
    return dict(etcd.bootstrap.authorities)


def check_loaded(cluster: OperatedCluster, *names: str) -> None:
    """Machines trust the present CAs, and have certificates of them."""
    present = authorities(cluster)
    for node in cluster.simulation.nodes:
        if names and node.name not in names:
            continue
        assert all(present[name] in node.service.trust[name].bundle for name in AUTHORITIES), node.name
        assert all(present[name] in each for name in AUTHORITIES for each in node.service.trust[name].presented), (
            node.name
        )


def staged(cluster: OperatedCluster) -> list[str]:
    return [path for node in cluster.servers for path in node.disk.files if "/new-authorities/" in path]


async def rotate(cluster: OperatedCluster, generation: int = 1, *, settles: bool = True) -> operations.Run:
    return await cluster.run(operations.AUTHORITIES, generation=generation, settles=settles)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_rotation_replaces_all_authorities_and_certificates(version: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        first, before = authorities(cluster), certificates(cluster)
        for generation in (1, 2):
            async with reading(cluster):
                ended = await rotate(cluster, generation)
            assert ended.phase == "Finished", ended.message
            assert list(ended.timings) == ["Prepare", "Snapshot", "Replace", "Rotate", "RestartCluster"]
            assert not set(authorities(cluster).values()) & set(first.values())
            check_loaded(cluster)
            assert staged(cluster) == []
        after = certificates(cluster)
        assert after.keys() == before.keys()
        assert all(after[each].serial != old.serial for each, old in before.items())
        assert not any(operations.task_instructions(plan.plan) for plan in plans(cluster))
        listed = await cluster.simulation.sim.all(ETCD_SNAPSHOT)
        known = {each["metadata"]["annotations"][SNAPSHOT_AUTHORITIES] for each in listed}
        assert (len(listed), len(known)) == (2 * SERVERS, 2), "each snapshot names its CAs"
        renewed = await cluster.run(operations.CERTIFICATES, generation=3, caCertificates=False)
        assert renewed.phase == "Finished", renewed.message
        check_loaded(cluster)
        cluster.simulation.check()

    run(version, scenario)


@pytest.mark.parametrize("actor", CRASHES)
def test_a_rotation_survives_a_crash_in_each_phase(actor: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        async with reading(cluster):
            ended, phases = await run_with_crashes(cluster, operations.AUTHORITIES, CRASHES[actor])
            if ended.phase != "Finished":
                ended = await rotate(cluster, 2)
        assert ended.phase == "Finished", ended.message
        assert "Rotate" in phases
        check_loaded(cluster)
        assert staged(cluster) == []
        cluster.simulation.check()

    run("v1.34.1+k3s1", scenario)


def test_a_dead_worker_is_skipped_and_trusted_when_it_returns_after_two_rotations() -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        worker = cluster.first_worker
        worker.power_off()
        for generation in (1, 2):
            ended = await rotate(cluster, generation, settles=False)
            assert ended.phase == "Finished", ended.message
            assert ended.skipped == (cluster.simulation.machine_of(worker),)
        worker.boot()
        await cluster.simulation.until_settled()
        check_loaded(cluster)
        cluster.simulation.check()

    run("v1.34.1+k3s1", scenario, workers=2)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_restore_brings_back_the_authorities_of_the_snapshot(version: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        await cluster.write("before")
        saved = await cluster.run(operations.SNAPSHOT)
        assert saved.phase == "Finished", saved.message
        name, first = (await cluster.simulation.sim.all(ETCD_SNAPSHOT))[0]["metadata"]["name"], authorities(cluster)
        for generation in (1, 2):
            ended = await rotate(cluster, generation)
            assert ended.phase == "Finished", ended.message
        await cluster.write("after")
        restored = await cluster.run(operations.RESTORE, name=name)
        assert restored.phase == "Finished", restored.message
        assert (await cluster.has("before"), await cluster.has("after")) == (True, False)
        assert authorities(cluster) == first
        check_loaded(cluster)
        ended = await rotate(cluster, 3)
        assert ended.phase == "Finished", ended.message
        check_loaded(cluster)
        cluster.simulation.check()

    run(version, scenario)


def test_the_judge_notices_authorities_that_the_old_ones_have_not_signed() -> None:
    """As with `rotate-ca --force`: machines with the old and the new ones do not accept each other."""

    async def scenario(cluster: OperatedCluster) -> None:
        etcd = cluster.simulation.sim.downstream.etcd
        assert etcd is not None
        new = {name: serial + 1_000_000 for name, serial in etcd.bootstrap.authorities.items()}
        bundles = {name: frozenset({serial}) for name, serial in new.items()}
        etcd.bootstrap = replace(etcd.bootstrap, authorities=new, bundles=bundles)
        restarted = await shell.execute(Command(cluster.servers[0], "sh", (), {}), "systemctl", "restart", "k3s")
        assert restarted.exit_code == 0, restarted.stderr
        with pytest.raises(AssertionError, match="no machine loses trust"):
            cluster.simulation.check()

    run("v1.34.1+k3s1", scenario)


def test_authorities_that_k3s_does_not_find_leave_everything_as_it_was() -> None:
    """`rotate-ca` only warns about missing files, and exits with 0."""

    async def scenario(cluster: OperatedCluster) -> None:
        server = cluster.servers[0]
        done = await shell.execute(Command(server, "sh", (), {}), "k3s", "certificate", "rotate-ca", "--path=/nowhere")
        assert (done.exit_code, done.stdout) == (0, b"certificates saved to datastore\n")
        assert done.stderr.count(b"failed to stat") == 11
        first = authorities(cluster)
        ended = await rotate(cluster)
        assert ended.phase == "Finished", ended.message
        assert authorities(cluster) != first

    run("v1.34.1+k3s1", scenario)


@pytest.mark.parametrize("version", ["v1.34.1+kubeadm1", "v1.34.1+herder1"])
def test_other_distributions_refuse_the_request(version: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        name = distribution_of(version).name
        with pytest.raises(Invalid, match=re.escape(NO_AUTHORITY_ROTATION[name])):
            await rotate(cluster)
        scope = SimpleNamespace(distribution=distribution_of(version))  # a request that was stored before
        assert AUTHORITIES_OPERATION.preflight(cast(OperationScope, scope)) == NO_AUTHORITY_ROTATION[name]

    run(version, scenario, servers=3 if "kubeadm" in version else 1)
