"""The connection state of agents is recorded by one or several replicas of the gateway, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from herder.api.capi.names import annotations_of
from herder.api.management.crds import CRDS
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.management.names import CONNECTED_SINCE, CONNECTED_TO, SYSTEM_NAMESPACE
from herder.app.install import ensure_namespace, install_kinds
from herder.engine.client.client import Client
from herder.gateway.agents.clusters import Clusters
from herder.gateway.agents.presence import DEBOUNCE_SECONDS, RECONNECT_SECONDS, RETRY_SECONDS, Presence
from herder.gateway.ha.replicas import GATEWAY, LEASE, LEASE_SECONDS, Membership, Replicas, SingleReplica
from herder.sim import loop
from tests.unit.engine.runtime.envtest import Environment, environment, now

MEADOW, PASTURE = "c-m-meadow22", "c-m-pasture2"


@dataclass
class Harness:
    env: Environment
    running: dict[str, list[asyncio.Task[None]]] = field(default_factory=dict)

    async def connection(self, cluster: str = MEADOW) -> tuple[str, str]:
        """Since when the agent is connected, and which replica reports it."""
        found = annotations_of(await self.env.outside.get(MANAGEMENT_CLUSTER.resource, cluster))
        return found.get(CONNECTED_SINCE, ""), found.get(CONNECTED_TO, "")

    async def since(self, cluster: str = MEADOW) -> str:
        return (await self.connection(cluster))[0]

    async def start(self, client: Client, replicas: Membership, peers: dict[str, str]) -> Presence:
        """`peers` maps clusters to another replica that has a tunnel too."""
        clusters = Clusters(client)
        presence = Presence(client, now, clusters=clusters, replicas=replicas, peer_of=lambda c: peers.get(c, ""))
        tasks = self.running.setdefault(replicas.own, [])
        tasks.append(asyncio.ensure_future(clusters.run()))
        await clusters.ready()
        if isinstance(replicas, Replicas):
            tasks.append(asyncio.ensure_future(replicas.run()))
            await replicas.ready()
            await replicas.announce()
            tasks.append(asyncio.ensure_future(replicas.renew_lease()))
        tasks.append(asyncio.ensure_future(presence.run()))
        await asyncio.sleep(0.1)
        return presence

    async def replica(self, name: str, peers: dict[str, str] | None = None) -> Presence:
        return await self.start(self.env.outside, Replicas(self.env.outside, name, "", now), peers or {})

    async def kill(self, name: str) -> None:
        """End the replica without releasing its Lease."""
        for task in self.running.pop(name):
            task.cancel()
        await asyncio.sleep(0.1)
        metadata = {"name": name, "namespace": SYSTEM_NAMESPACE, "labels": {GATEWAY: "true"}}
        lease = {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata}
        await self.env.outside.apply(LEASE.resource, lease | {"spec": {"leaseDurationSeconds": LEASE_SECONDS}})

    async def stop(self) -> None:
        tasks = [task for tasks in self.running.values() for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run_scenario(
    scenario: Callable[[Harness], Awaitable[None]], *, pasture_annotations: dict[str, str] | None = None
) -> None:
    async def run() -> None:
        async with environment() as env:
            await install_kinds(env.outside, list(CRDS))
            await ensure_namespace(env.outside, SYSTEM_NAMESPACE)
            for name in (MEADOW, PASTURE):
                meta = {
                    "name": name,
                    "annotations": pasture_annotations if pasture_annotations and name == PASTURE else {},
                }
                cluster = {"apiVersion": MANAGEMENT_CLUSTER.api_version, "kind": "Cluster", "metadata": meta}
                await env.outside.create(MANAGEMENT_CLUSTER.resource, cluster)
            harness = Harness(env)
            try:
                await scenario(harness)
            finally:
                await harness.stop()

    loop.run(run())


def run_with_one_replica(
    scenario: Callable[[Harness, Presence], Awaitable[None]], *, pasture_annotations: dict[str, str] | None = None
) -> None:
    async def with_one_replica(harness: Harness) -> None:
        presence = await harness.start(harness.env.client, SingleReplica("this"), {})
        harness.env.wire.requests.clear()
        await scenario(harness, presence)

    run_scenario(with_one_replica, pasture_annotations=pasture_annotations)


# --- one replica ----------------------------------------------------------------------------------------------------


def test_connection_and_disconnection_are_recorded() -> None:
    async def scenario(harness: Harness, presence: Presence) -> None:
        presence.changed(MEADOW, True)
        await asyncio.sleep(0.1)
        since, replica = await harness.connection()
        assert since
        assert replica == "this"
        presence.changed(MEADOW, False)
        await asyncio.sleep(DEBOUNCE_SECONDS + 0.1)
        assert await harness.connection() == ("", "")

    run_with_one_replica(scenario)


def test_a_short_disconnection_is_not_recorded() -> None:
    async def scenario(harness: Harness, presence: Presence) -> None:
        presence.changed(MEADOW, True)
        await asyncio.sleep(0.1)
        first = await harness.since()
        presence.changed(MEADOW, False)
        await asyncio.sleep(DEBOUNCE_SECONDS / 2)
        presence.changed(MEADOW, True)
        await asyncio.sleep(DEBOUNCE_SECONDS + 0.1)
        assert await harness.since() == first
        assert harness.env.wire.count("PATCH") == 1

    run_with_one_replica(scenario)


def test_the_second_tunnel_of_an_agent_is_ignored() -> None:
    async def scenario(harness: Harness, presence: Presence) -> None:
        presence.changed(f"stv-cluster-{MEADOW}", True)
        await asyncio.sleep(0.1)
        assert not harness.env.wire.count("PATCH")

    run_with_one_replica(scenario)


def test_failed_writes_are_retried() -> None:
    async def scenario(harness: Harness, presence: Presence) -> None:
        harness.env.wire.down = True
        presence.changed(MEADOW, True)
        await asyncio.sleep(0.1)
        harness.env.wire.down = False
        await asyncio.sleep(RETRY_SECONDS + 0.1)
        assert await harness.since()

    run_with_one_replica(scenario)


def test_removed_annotations_are_restored() -> None:
    async def scenario(harness: Harness, presence: Presence) -> None:
        presence.changed(MEADOW, True)
        await asyncio.sleep(0.1)
        patch = {"metadata": {"annotations": {CONNECTED_SINCE: None, CONNECTED_TO: None}}}
        await harness.env.outside.patch(MANAGEMENT_CLUSTER.resource, MEADOW, patch)
        await asyncio.sleep(0.1)
        assert await harness.since()

    run_with_one_replica(scenario)


def test_agents_of_a_dead_manager_have_time_to_reconnect() -> None:
    async def scenario(harness: Harness, presence: Presence) -> None:
        await asyncio.sleep(RECONNECT_SECONDS - 1)
        assert await harness.since(PASTURE), "not yet"
        await asyncio.sleep(2)
        assert not await harness.since(PASTURE)

    run_with_one_replica(
        scenario, pasture_annotations={CONNECTED_SINCE: "2025-12-31T00:00:00Z", CONNECTED_TO: "before"}
    )


def test_reconnected_agents_stay_connected() -> None:
    async def scenario(harness: Harness, presence: Presence) -> None:
        presence.changed(PASTURE, True)
        await asyncio.sleep(RECONNECT_SECONDS + 1)
        assert (await harness.connection(PASTURE))[1] == "this"

    run_with_one_replica(scenario, pasture_annotations={CONNECTED_SINCE: "2025-12-31T00:00:00Z"})


def test_a_deleted_cluster_is_not_patched() -> None:
    async def scenario(harness: Harness, presence: Presence) -> None:
        presence.changed("c-m-nowhere2", True)
        await asyncio.sleep(3 * RETRY_SECONDS)
        assert not harness.env.wire.count("PATCH")

    run_with_one_replica(scenario)


# --- several replicas -----------------------------------------------------------------------------------------------


def test_a_replica_without_a_session_keeps_the_record_of_another() -> None:
    async def scenario(harness: Harness) -> None:
        first = await harness.replica("first")
        second = await harness.replica("second")
        first.changed(MEADOW, True)
        await asyncio.sleep(0.1)
        before = await harness.connection()
        second.changed(MEADOW, True)  # agents may have several sessions
        await asyncio.sleep(0.1)
        second.changed(MEADOW, False)
        await asyncio.sleep(2 * RECONNECT_SECONDS)
        assert await harness.connection() == before

    run_scenario(scenario)


def test_a_lost_session_is_handed_over_to_a_replica_that_has_one() -> None:
    async def scenario(harness: Harness) -> None:
        first = await harness.replica("first", peers={MEADOW: "second"})
        second = await harness.replica("second")
        first.changed(MEADOW, True)
        await asyncio.sleep(0.1)
        since, _ = await harness.connection()
        second.changed(MEADOW, True)
        first.changed(MEADOW, False)
        await asyncio.sleep(DEBOUNCE_SECONDS + 0.1)
        assert await harness.connection() == (since, "second"), "it was never disconnected"

    run_scenario(scenario)


def test_a_handover_to_a_replica_without_a_session_is_corrected() -> None:
    async def scenario(harness: Harness) -> None:
        first = await harness.replica("first", peers={MEADOW: "second"})
        await harness.replica("second")
        first.changed(MEADOW, True)
        await asyncio.sleep(0.1)
        first.changed(MEADOW, False)
        await asyncio.sleep(DEBOUNCE_SECONDS + 0.2)
        assert await harness.connection() == ("", "")

    run_scenario(scenario)


def test_a_replica_takes_over_the_record_of_its_session() -> None:
    """The replica that lost the agent did not know where it reconnected."""

    async def scenario(harness: Harness) -> None:
        first, second = await harness.replica("first"), await harness.replica("second")
        first.changed(MEADOW, True)
        await asyncio.sleep(0.1)
        second.changed(MEADOW, True)
        first.changed(MEADOW, False)
        await asyncio.sleep(DEBOUNCE_SECONDS + 0.2)
        assert (await harness.connection())[1] == "second"

    run_scenario(scenario)


def test_another_replica_takes_over_when_one_dies() -> None:
    async def scenario(harness: Harness) -> None:
        first, second = await harness.replica("first"), await harness.replica("second")
        first.changed(MEADOW, True)
        await asyncio.sleep(0.1)
        await harness.kill("first")
        second.changed(MEADOW, True)
        for _ in range(LEASE_SECONDS + 5):
            assert await harness.since(), "it never appears disconnected"
            await asyncio.sleep(1)
        assert (await harness.connection())[1] == "second"

    run_scenario(scenario)


def test_records_of_a_dead_replica_expire() -> None:
    async def scenario(harness: Harness) -> None:
        first = await harness.replica("first")
        await harness.replica("second")
        first.changed(MEADOW, True)
        await asyncio.sleep(0.1)
        await harness.kill("first")
        await asyncio.sleep(LEASE_SECONDS - 1)
        assert await harness.since()
        await asyncio.sleep(RECONNECT_SECONDS + 2)
        assert await harness.connection() == ("", "")
        leases = await harness.env.outside.list(LEASE.resource, namespace=SYSTEM_NAMESPACE)
        assert [each["metadata"]["name"] for each in leases.items] == ["second"], (
            "the Lease of the dead replica is deleted"
        )

    run_scenario(scenario)


def test_a_stopping_replica_deletes_its_lease() -> None:
    async def scenario(harness: Harness) -> None:
        await harness.replica("first")
        await harness.replica("second")
        for task in harness.running["first"]:
            task.cancel()
        await asyncio.sleep(0.5)
        leases = await harness.env.outside.list(LEASE.resource, namespace=SYSTEM_NAMESPACE)
        assert [each["metadata"]["name"] for each in leases.items] == ["second"]

    run_scenario(scenario)
