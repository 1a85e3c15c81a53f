"""Whether agents are connected is written as they come and go, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from herder.api.management.crds import CRDS
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.management.names import CONNECTED_SINCE
from herder.cli.install import install_kinds
from herder.gateway.presence import RETRY_SECONDS, RETURN_SECONDS, SETTLE_SECONDS, Presence
from herder.sim import loop
from tests.engine.runtime.world import World, now, world

MEADOW, PASTURE = "c-m-meadow22", "c-m-pasture2"


def play(story: Callable[[World, Presence], Awaitable[None]], *, known: dict[str, str] | None = None) -> None:
    async def run() -> None:
        async with world() as here:
            await install_kinds(here.outside, list(CRDS))
            for name in (MEADOW, PASTURE):
                meta = {"name": name, "annotations": known if known and name == PASTURE else {}}
                cluster = {"apiVersion": MANAGEMENT_CLUSTER.api_version, "kind": "Cluster", "metadata": meta}
                await here.outside.create(MANAGEMENT_CLUSTER.resource, cluster)
            presence = Presence(here.client, now)
            running = asyncio.ensure_future(presence.run())
            await asyncio.sleep(0.1)
            here.wire.requests.clear()
            await story(here, presence)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    loop.run(run())


async def since(here: World, cluster: str = MEADOW) -> str | None:
    found = await here.outside.get(MANAGEMENT_CLUSTER.resource, cluster)
    return (found["metadata"].get("annotations") or {}).get(CONNECTED_SINCE)


def test_an_agent_comes_and_goes() -> None:
    async def story(here: World, presence: Presence) -> None:
        presence.changed(MEADOW, True)
        await asyncio.sleep(0.1)
        assert await since(here)
        presence.changed(MEADOW, False)
        await asyncio.sleep(SETTLE_SECONDS + 0.1)
        assert await since(here) is None

    play(story)


def test_one_that_is_back_at_once_was_never_away() -> None:
    async def story(here: World, presence: Presence) -> None:
        presence.changed(MEADOW, True)
        await asyncio.sleep(0.1)
        first = await since(here)
        presence.changed(MEADOW, False)
        presence.changed(MEADOW, True)
        await asyncio.sleep(SETTLE_SECONDS + 0.1)
        assert await since(here) == first
        assert here.wire.count("PATCH") == 1

    play(story)


def test_the_second_tunnel_of_an_agent_says_nothing_of_its_own() -> None:
    async def story(here: World, presence: Presence) -> None:
        presence.changed(f"stv-cluster-{MEADOW}", True)
        await asyncio.sleep(0.1)
        assert not here.wire.count("PATCH")

    play(story)


def test_what_could_not_be_written_is_written_later() -> None:
    async def story(here: World, presence: Presence) -> None:
        here.wire.down = True
        presence.changed(MEADOW, True)
        await asyncio.sleep(0.1)
        here.wire.down = False
        await asyncio.sleep(RETRY_SECONDS + 0.1)
        assert await since(here)

    play(story)


def test_agents_of_a_manager_that_died_have_a_while_to_come_back() -> None:
    async def story(here: World, presence: Presence) -> None:
        await asyncio.sleep(RETURN_SECONDS - 1)
        assert await since(here, PASTURE), "not yet"
        await asyncio.sleep(2)
        assert await since(here, PASTURE) is None

    play(story, known={CONNECTED_SINCE: "2025-12-31T00:00:00Z"})


def test_those_that_came_back_stay_connected() -> None:
    async def story(here: World, presence: Presence) -> None:
        presence.changed(PASTURE, True)
        await asyncio.sleep(RETURN_SECONDS + 1)
        assert await since(here, PASTURE)

    play(story, known={CONNECTED_SINCE: "2025-12-31T00:00:00Z"})


def test_a_cluster_that_is_gone_is_not_asked_for_again() -> None:
    async def story(here: World, presence: Presence) -> None:
        presence.changed("c-m-nowhere2", True)
        await asyncio.sleep(3 * RETRY_SECONDS)
        assert here.wire.count("PATCH") == 1

    play(story)
