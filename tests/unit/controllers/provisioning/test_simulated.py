"""Managed clusters from their first moment to their last, in simulation: nothing is made twice, no token opens longer
than it should, and what goes wrong in between changes nothing of that."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from herder.api.capi.conditions import find, timestamp
from herder.api.capi.kinds import NAMESPACE, SECRET
from herder.api.crds import SETTING_CRD
from herder.api.machines.jobs import ROLE
from herder.api.management import clusters, names
from herder.api.management.crds import CRDS
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER, REGISTRATION_TOKEN
from herder.api.management.registration import RENEW, Tokens, read_tokens
from herder.api.rke.crds import CRDS as RKE_CRDS
from herder.controllers.provisioning import cluster_registration_token
from herder.controllers.provisioning.cluster import controller as provisioning_cluster
from herder.controllers.provisioning.management_cluster import controller as management_cluster
from herder.effects.registration_token import Renewal
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind, Object
from herder.sim import loop
from herder.sim.faults import NONE, ROUGH, Faults
from herder.sim.world import World

MINUTES = 60.0
WORKSPACE, NAME = "fleet-default", "meadow"


class Manager:
    def __init__(self, seed: int, faults: Faults = NONE) -> None:
        self.managed: set[str] = set()
        self.world = World(
            seed,
            [management_cluster.CONTROLLER, provisioning_cluster.CONTROLLER, cluster_registration_token.CONTROLLER],
            crds=[*CRDS, *RKE_CRDS, SETTING_CRD],  # without those of Cluster API, which imported clusters do not need
            performers={RENEW: self.renew},
            faults=faults,
            watched=(MANAGEMENT_CLUSTER,),
            invariant=self.invariant,
        )

    async def renew(self, arguments: Mapping[str, Any]) -> Object:
        return await Renewal(self.world.client, self.world.now, self.world.random.randbytes)(arguments)

    def invariant(self, _kind: Kind, _event: str, obj: Object) -> None:
        self.managed.add(obj["metadata"]["name"])
        assert len(self.managed - {names.LOCAL}) <= 1, "one cluster has one management Cluster"

    # --- acts -----------------------------------------------------------------------------------------------------

    async def ask_for_cluster(self) -> str:
        await self.world.client.create(NAMESPACE.resource, _object(NAMESPACE, WORKSPACE))
        cluster = _object(PROVISIONING_CLUSTER, NAME, namespace=WORKSPACE) | {"spec": {}}
        await self.world.client.create(PROVISIONING_CLUSTER.resource, cluster, namespace=WORKSPACE)
        await self.world.until(self.has_token)
        return str((await self.provisioning())["status"]["clusterName"])

    async def agent_comes(self, cluster: str) -> None:
        endpoint = {"status": {"apiEndpoint": "https://10.43.0.1:443"}}
        await self.world.client.patch(MANAGEMENT_CLUSTER.resource, cluster, endpoint, subresource="status")
        await self._connected(cluster, timestamp(self.world.now()))

    async def agent_goes(self, cluster: str) -> None:
        await self._connected(cluster, None)

    async def _connected(self, cluster: str, since: str | None) -> None:
        patch = {"metadata": {"annotations": {names.CONNECTED_SINCE: since}}}
        await self.world.client.patch(MANAGEMENT_CLUSTER.resource, cluster, patch)

    # --- what is there --------------------------------------------------------------------------------------------

    async def provisioning(self) -> Object:
        return await self.world.client.get(PROVISIONING_CLUSTER.resource, NAME, namespace=WORKSPACE)

    async def management(self, name: str) -> Object:
        return await self.world.client.get(MANAGEMENT_CLUSTER.resource, name)

    async def registration(self) -> Object | None:
        cluster = (await self.provisioning()).get("status", {}).get("clusterName", "none")
        try:
            return await self.world.client.get(REGISTRATION_TOKEN.resource, names.DEFAULT_TOKEN, namespace=cluster)
        except NotFound:
            return None

    async def has_token(self) -> bool:
        registration = await self.registration()
        return bool(registration and (registration.get("status") or {}).get("expiresAt"))

    async def tokens(self, cluster: str, registration: str = names.DEFAULT_TOKEN) -> Tokens:
        secret = await self.world.client.get(SECRET.resource, names.token_secret(registration), namespace=cluster)
        found = read_tokens(secret)
        assert found is not None
        return found

    async def holds(self, cluster: str, registration: str) -> bool:
        try:
            await self.tokens(cluster, registration)
        except NotFound:
            return False
        return True

    async def replaced(self, cluster: str, registration: str, known: Tokens) -> bool:
        return await self.holds(cluster, registration) and (await self.tokens(cluster, registration)) != known

    async def says(self, kind: Kind, type_: str, status: str, name: str = "") -> bool:
        obj = await (self.provisioning() if kind == PROVISIONING_CLUSTER else self.management(name))
        return (find(obj, type_) or {}).get("status") == status

    async def gone(self, kind: Kind) -> bool:
        return not [each for each in (await self.world.client.list_all(kind.resource)).items if _is_ours(each)]


def _is_ours(obj: Object) -> bool:
    name = str(obj["metadata"]["name"])
    return name.startswith("c-m-") or name in {NAME, names.DEFAULT_TOKEN}


def _object(kind: Kind, name: str, **meta: str) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name, **meta}}


async def live(manager: Manager) -> None:
    async with manager.world as world:
        cluster = await manager.ask_for_cluster()
        assert not await manager.says(PROVISIONING_CLUSTER, clusters.READY, "True")
        await manager.agent_comes(cluster)
        await world.until(lambda: manager.says(PROVISIONING_CLUSTER, clusters.READY, "True"))
        await manager.agent_goes(cluster)
        await world.until(lambda: manager.says(PROVISIONING_CLUSTER, clusters.READY, "False"))
        assert (await manager.provisioning())["status"]["ready"], "that it has been ready stays true"
        ready = find(await manager.management(cluster), clusters.READY) or {}
        assert (ready["reason"], ready["message"]) == ("Disconnected", "Cluster agent is not connected")
        role = await world.client.get(ROLE.resource, names.TOKEN_READER, namespace=cluster)
        assert role["rules"][0]["resourceNames"] == ["crt-token-default-token"]
        await world.client.delete(PROVISIONING_CLUSTER.resource, NAME, namespace=WORKSPACE)
        for kind in (PROVISIONING_CLUSTER, MANAGEMENT_CLUSTER, REGISTRATION_TOKEN, NAMESPACE):
            await world.until(partial(manager.gone, kind))


def test_a_cluster_is_imported_connected_lost_and_deleted() -> None:
    loop.run(live(Manager(0)))


@pytest.mark.parametrize("seed", range(1, 7))
def test_nothing_is_made_twice_through_conflicts_losses_and_crashes(seed: int) -> None:
    loop.run(live(Manager(seed, ROUGH)))


def test_deleting_the_management_cluster_takes_the_pair_with_it() -> None:
    async def run(manager: Manager) -> None:
        async with manager.world as world:
            cluster = await manager.ask_for_cluster()
            await world.client.delete(MANAGEMENT_CLUSTER.resource, cluster)
            for kind in (PROVISIONING_CLUSTER, MANAGEMENT_CLUSTER, NAMESPACE):
                await world.until(partial(manager.gone, kind))

    loop.run(run(Manager(0)))


def test_the_managers_own_cluster_is_there_as_a_pair_and_always_connected() -> None:
    async def run(manager: Manager) -> None:
        async with manager.world as world:
            await world.client.create(MANAGEMENT_CLUSTER.resource, clusters.local_cluster())

            async def ready() -> bool:
                try:
                    found = await world.client.get(PROVISIONING_CLUSTER.resource, "local", namespace="fleet-local")
                except NotFound:
                    return False
                return bool((found.get("status") or {}).get("ready"))

            await world.until(ready)
            await world.client.delete(PROVISIONING_CLUSTER.resource, "local", namespace="fleet-local")
            await world.until(ready)
            assert not (await manager.management("local"))["metadata"].get("deletionTimestamp")

    loop.run(run(Manager(0)))


def test_a_token_is_replaced_when_its_time_is_over_and_counts_a_little_longer() -> None:
    async def run(manager: Manager) -> None:
        async with manager.world as world:
            cluster = await manager.ask_for_cluster()
            spec = {"clusterName": cluster, "ttl": 30, "gracePeriod": 10}
            short = _object(REGISTRATION_TOKEN, "short", namespace=cluster) | {"spec": spec}
            await world.client.create(REGISTRATION_TOKEN.resource, short, namespace=cluster)
            await world.until(lambda: manager.holds(cluster, "short"))
            first = await manager.tokens(cluster, "short")
            await asyncio.sleep(30 * MINUTES - 5)
            assert await manager.tokens(cluster, "short") == first, "not before its time is over"
            await world.until(lambda: manager.replaced(cluster, "short", first), within=3 * MINUTES + 10)
            second, now = await manager.tokens(cluster, "short"), world.now()
            assert now >= first.expires
            assert second.token != first.token
            assert second.accepts(second.token, now)
            assert second.accepts(first.token, now), "agents that know the old one only come to know the new one"
            await asyncio.sleep(10 * MINUTES)
            assert not second.accepts(first.token, world.now()), "not after the grace period"
            await asyncio.sleep(20 * MINUTES)
            await world.until(lambda: manager.replaced(cluster, "short", second), within=3 * MINUTES + 10)
            third = await manager.tokens(cluster, "short")
            assert not third.accepts(first.token, world.now())

    loop.run(run(Manager(0)))


def test_a_deleted_token_secret_is_made_anew_with_another_token() -> None:
    async def run(manager: Manager) -> None:
        async with manager.world as world:
            cluster = await manager.ask_for_cluster()
            first = await manager.tokens(cluster)
            await world.client.delete(SECRET.resource, "crt-token-default-token", namespace=cluster)

            await world.until(lambda: manager.replaced(cluster, names.DEFAULT_TOKEN, first))
            assert not (await manager.tokens(cluster)).accepts(first.token, world.now())

    loop.run(run(Manager(0)))
