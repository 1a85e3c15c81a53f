"""Certificates of simulated machines that expire soon are reported, and a rotation clears the report."""

from __future__ import annotations

import asyncio

import pytest

from herder.api.capi.conditions import find
from herder.api.capi.kinds import MACHINE
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke import operations
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.node.certificates import CERTIFICATES_VALID, EXPIRED, EXPIRING, certificates_of
from herder.engine.meta.kinds import Object
from herder.engine.runtime.events.recorder import EVENTS
from herder.sim.host import certificates
from herder.sim.host.certificates import certificates_at
from herder.sim.nodes import SimulatedNode
from herder.sim.provisioned import NAME
from tests.simulation.plans.operations.operated_cluster import HOUR, OperatedCluster, run

VERSIONS = ("v1.34.1+k3s1", "v1.34.1+rke2r1", "v1.34.1+kubeadm1", "v1.34.1+herder1")
DAY = 24 * HOUR
VALID = 600.0
"""Seconds that certificates are valid before they expire soon."""


async def condition_of(cluster: OperatedCluster) -> Object:
    return find(await cluster.control_plane(), CERTIFICATES_VALID) or {}


async def until_status(cluster: OperatedCluster, status: str, reason: str = "", within: float = 60.0) -> str:
    async def reached() -> bool:
        known = await condition_of(cluster)
        return (known.get("status"), known.get("reason")) == (status, reason)

    await cluster.simulation.sim.world.until(reached, within=within)
    return str((await condition_of(cluster))["message"])


async def has_events(cluster: OperatedCluster, message: str) -> bool:
    listed = (await cluster.simulation.sim.world.client.list(EVENTS)).items
    about = {
        each["involvedObject"]["kind"] for each in listed if (each["reason"], each["message"]) == (EXPIRING, message)
    }
    return about == {CONTROL_PLANE.kind, PROVISIONING_CLUSTER.kind}


async def until_reports_are_true(cluster: OperatedCluster) -> None:
    """Each Machine has the serial numbers and the dates of all certificates on its disk, shortly after a change."""

    async def is_true() -> bool:
        machines = {each["metadata"]["name"]: each for each in await cluster.simulation.sim.all(MACHINE)}
        return all(_reported(node, machines[cluster.simulation.machine_of(node)]) for node in cluster.simulation.nodes)

    await cluster.simulation.sim.world.until(is_true, within=60)


def _reported(node: SimulatedNode, machine: Object) -> bool:
    found = {each.path: (int(each.serial, 16), int(each.expires.timestamp())) for each in certificates_of(machine)}
    directories = {"/etc/kubernetes", "/var/lib/kubelet/pki", node.disk.layout.data, node.disk.layout.tls}
    below = {path.rpartition("/")[0] for directory in directories for path in node.disk.below(directory)}
    patterns = [f"{directory}/*" for directory in sorted(below)]
    real = {path: (each.serial, int(each.expires)) for path, each in certificates_at(node, patterns)}
    assert len(real) > (0 if node.is_worker else 2)
    backups = {path for path in real if "/tls-" in path}
    return found == {path: real[path] for path in real.keys() - backups}


@pytest.mark.parametrize("version", VERSIONS)
def test_certificates_are_reported_until_they_are_rotated(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "YEAR", 30 * DAY + VALID)

    async def scenario(cluster: OperatedCluster) -> None:
        await until_reports_are_true(cluster)
        await until_status(cluster, "True")
        began = asyncio.get_running_loop().time()
        message = await until_status(cluster, "False", EXPIRING, within=VALID)
        assert message.startswith("certificate /")
        assert message.endswith(f"; renew the certificates with: herder rotate certificates {NAME}")
        ready = find(await cluster.control_plane(), "Ready")
        assert ready is not None
        assert ready["status"] == "True"
        await cluster.simulation.sim.world.until(lambda: has_events(cluster, message), within=30)
        assert asyncio.get_running_loop().time() - began > VALID / 2

        rotated = await cluster.run(operations.CERTIFICATES)
        assert rotated.phase == "Finished", rotated.message
        await until_status(cluster, "True")
        await until_reports_are_true(cluster)

    run(version, scenario, servers=1)


def test_expired_certificates_have_a_reason_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "YEAR", 120.0)

    async def scenario(cluster: OperatedCluster) -> None:
        message = await until_status(cluster, "False", EXPIRED, within=240)
        assert " expired at " in message

    run("v1.34.1+k3s1", scenario, servers=1)
