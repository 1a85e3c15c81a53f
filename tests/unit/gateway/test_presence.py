"""Whether agents are connected is written as they come and go, by one replica of the gateway or several, on virtual
time."""

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
from tests.unit.engine.runtime.world import World, now, world

MEADOW, PASTURE = "c-m-meadow22", "c-m-pasture2"


@dataclass
class Here:
    world: World
    running: dict[str, list[asyncio.Task[None]]] = field(default_factory=dict)

    async def told(self, cluster: str = MEADOW) -> tuple[str, str]:
        """Since when its agent is connected, and who says so."""
        found = annotations_of(await self.world.outside.get(MANAGEMENT_CLUSTER.resource, cluster))
        return found.get(CONNECTED_SINCE, ""), found.get(CONNECTED_TO, "")

    async def since(self, cluster: str = MEADOW) -> str:
        return (await self.told(cluster))[0]

    async def start(self, client: Client, replicas: Membership, peers: dict[str, str]) -> Presence:
        """`peers`: by cluster, the other replica that has a tunnel too."""
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
        return await self.start(self.world.outside, Replicas(self.world.outside, name, "", now), peers or {})

    async def die(self, name: str) -> None:
        """Without a word."""
        for task in self.running.pop(name):
            task.cancel()
        await asyncio.sleep(0.1)
        left = {"name": name, "namespace": SYSTEM_NAMESPACE, "labels": {GATEWAY: "true"}}
        lease = {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": left}
        await self.world.outside.apply(LEASE.resource, lease | {"spec": {"leaseDurationSeconds": LEASE_SECONDS}})

    async def stop(self) -> None:
        tasks = [task for tasks in self.running.values() for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def play(story: Callable[[Here], Awaitable[None]], *, known: dict[str, str] | None = None) -> None:
    async def run() -> None:
        async with world() as made:
            await install_kinds(made.outside, list(CRDS))
            await ensure_namespace(made.outside, SYSTEM_NAMESPACE)
            for name in (MEADOW, PASTURE):
                meta = {"name": name, "annotations": known if known and name == PASTURE else {}}
                cluster = {"apiVersion": MANAGEMENT_CLUSTER.api_version, "kind": "Cluster", "metadata": meta}
                await made.outside.create(MANAGEMENT_CLUSTER.resource, cluster)
            here = Here(made)
            try:
                await story(here)
            finally:
                await here.stop()

    loop.run(run())


def alone(story: Callable[[Here, Presence], Awaitable[None]], *, known: dict[str, str] | None = None) -> None:
    async def with_one(here: Here) -> None:
        presence = await here.start(here.world.client, SingleReplica("this"), {})
        here.world.wire.requests.clear()
        await story(here, presence)

    play(with_one, known=known)


# --- one gateway ----------------------------------------------------------------------------------------------------


def test_an_agent_comes_and_goes() -> None:
    async def story(here: Here, presence: Presence) -> None:
        presence.changed(MEADOW, True)
        await asyncio.sleep(0.1)
        since, who = await here.told()
        assert since
        assert who == "this"
        presence.changed(MEADOW, False)
        await asyncio.sleep(DEBOUNCE_SECONDS + 0.1)
        assert await here.told() == ("", "")

    alone(story)


def test_one_that_is_back_at_once_was_never_away() -> None:
    async def story(here: Here, presence: Presence) -> None:
        presence.changed(MEADOW, True)
        await asyncio.sleep(0.1)
        first = await here.since()
        presence.changed(MEADOW, False)
        await asyncio.sleep(DEBOUNCE_SECONDS / 2)
        presence.changed(MEADOW, True)
        await asyncio.sleep(DEBOUNCE_SECONDS + 0.1)
        assert await here.since() == first
        assert here.world.wire.count("PATCH") == 1

    alone(story)


def test_the_second_tunnel_of_an_agent_says_nothing_of_its_own() -> None:
    async def story(here: Here, presence: Presence) -> None:
        presence.changed(f"stv-cluster-{MEADOW}", True)
        await asyncio.sleep(0.1)
        assert not here.world.wire.count("PATCH")

    alone(story)


def test_what_could_not_be_written_is_written_later() -> None:
    async def story(here: Here, presence: Presence) -> None:
        here.world.wire.down = True
        presence.changed(MEADOW, True)
        await asyncio.sleep(0.1)
        here.world.wire.down = False
        await asyncio.sleep(RETRY_SECONDS + 0.1)
        assert await here.since()

    alone(story)


def test_what_somebody_takes_away_is_said_again() -> None:
    async def story(here: Here, presence: Presence) -> None:
        presence.changed(MEADOW, True)
        await asyncio.sleep(0.1)
        patch = {"metadata": {"annotations": {CONNECTED_SINCE: None, CONNECTED_TO: None}}}
        await here.world.outside.patch(MANAGEMENT_CLUSTER.resource, MEADOW, patch)
        await asyncio.sleep(0.1)
        assert await here.since()

    alone(story)


def test_agents_of_a_manager_that_died_have_a_while_to_come_back() -> None:
    async def story(here: Here, presence: Presence) -> None:
        await asyncio.sleep(RECONNECT_SECONDS - 1)
        assert await here.since(PASTURE), "not yet"
        await asyncio.sleep(2)
        assert not await here.since(PASTURE)

    alone(story, known={CONNECTED_SINCE: "2025-12-31T00:00:00Z", CONNECTED_TO: "before"})


def test_those_that_came_back_stay_connected() -> None:
    async def story(here: Here, presence: Presence) -> None:
        presence.changed(PASTURE, True)
        await asyncio.sleep(RECONNECT_SECONDS + 1)
        assert (await here.told(PASTURE))[1] == "this"

    alone(story, known={CONNECTED_SINCE: "2025-12-31T00:00:00Z"})


def test_a_cluster_that_is_gone_is_not_written() -> None:
    async def story(here: Here, presence: Presence) -> None:
        presence.changed("c-m-nowhere2", True)
        await asyncio.sleep(3 * RETRY_SECONDS)
        assert not here.world.wire.count("PATCH")

    alone(story)


# --- several --------------------------------------------------------------------------------------------------------


def test_a_replica_that_has_no_session_leaves_alone_what_another_says() -> None:
    async def story(here: Here) -> None:
        first = await here.replica("first")
        second = await here.replica("second")
        first.changed(MEADOW, True)
        await asyncio.sleep(0.1)
        told = await here.told()
        second.changed(MEADOW, True)  # agents may have several, too
        await asyncio.sleep(0.1)
        second.changed(MEADOW, False)
        await asyncio.sleep(2 * RECONNECT_SECONDS)
        assert await here.told() == told

    play(story)


def test_who_loses_a_session_hands_over_to_who_has_one() -> None:
    async def story(here: Here) -> None:
        first = await here.replica("first", peers={MEADOW: "second"})
        second = await here.replica("second")
        first.changed(MEADOW, True)
        await asyncio.sleep(0.1)
        since, _ = await here.told()
        second.changed(MEADOW, True)
        first.changed(MEADOW, False)
        await asyncio.sleep(DEBOUNCE_SECONDS + 0.1)
        assert await here.told() == (since, "second"), "it was never away"

    play(story)


def test_who_was_handed_what_it_has_not_says_so() -> None:
    async def story(here: Here) -> None:
        first = await here.replica("first", peers={MEADOW: "second"})
        await here.replica("second")
        first.changed(MEADOW, True)
        await asyncio.sleep(0.1)
        first.changed(MEADOW, False)
        await asyncio.sleep(DEBOUNCE_SECONDS + 0.2)
        assert await here.told() == ("", "")

    play(story)


def test_a_session_elsewhere_is_found_out_by_who_has_it() -> None:
    """Who lost the agent did not know where it went."""

    async def story(here: Here) -> None:
        first, second = await here.replica("first"), await here.replica("second")
        first.changed(MEADOW, True)
        await asyncio.sleep(0.1)
        second.changed(MEADOW, True)
        first.changed(MEADOW, False)
        await asyncio.sleep(DEBOUNCE_SECONDS + 0.2)
        assert (await here.told())[1] == "second"

    play(story)


def test_for_a_replica_that_died_others_answer_as_soon_as_that_is_known() -> None:
    async def story(here: Here) -> None:
        first, second = await here.replica("first"), await here.replica("second")
        first.changed(MEADOW, True)
        await asyncio.sleep(0.1)
        await here.die("first")
        second.changed(MEADOW, True)
        for _ in range(LEASE_SECONDS + 5):
            assert await here.since(), "it never shows as away"
            await asyncio.sleep(1)
        assert (await here.told())[1] == "second"

    play(story)


def test_nothing_is_connected_for_ever() -> None:
    async def story(here: Here) -> None:
        first = await here.replica("first")
        await here.replica("second")
        first.changed(MEADOW, True)
        await asyncio.sleep(0.1)
        await here.die("first")
        await asyncio.sleep(LEASE_SECONDS - 1)
        assert await here.since()
        await asyncio.sleep(RECONNECT_SECONDS + 2)
        assert await here.told() == ("", "")
        leases = await here.world.outside.list(LEASE.resource, namespace=SYSTEM_NAMESPACE)
        assert [each["metadata"]["name"] for each in leases.items] == ["second"], "the dead leave nothing"

    play(story)


def test_a_replica_that_ends_says_so_itself() -> None:
    async def story(here: Here) -> None:
        await here.replica("first")
        await here.replica("second")
        for task in here.running["first"]:
            task.cancel()
        await asyncio.sleep(0.5)
        leases = await here.world.outside.list(LEASE.resource, namespace=SYSTEM_NAMESPACE)
        assert [each["metadata"]["name"] for each in leases.items] == ["second"]

    play(story)
