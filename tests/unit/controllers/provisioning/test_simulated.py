"""Simulated lifecycle of managed clusters: despite faults, nothing is created twice, and no token is valid for too
long."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from herder.api.capi.conditions import find, timestamp
from herder.api.capi.kinds import NAMESPACE, SECRET
from herder.api.crds import SETTING_CRD
from herder.api.machines.jobs import ROLE, ROLE_BINDING
from herder.api.management import clusters, names
from herder.api.management.crds import CRDS
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER, REGISTRATION_TOKEN
from herder.api.management.registration import RENEW, Tokens, read_tokens
from herder.api.rke.crds import CRDS as RKE_CRDS
from herder.app.admission.tenancy import install_tenancy_admission
from herder.controllers.provisioning import cluster_registration_token
from herder.controllers.provisioning.cluster import controller as provisioning_cluster
from herder.controllers.provisioning.management_cluster import controller as management_cluster
from herder.effects.registration_token import Renewal
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.client.client import Client
from herder.engine.meta.errors import Forbidden, NotFound
from herder.engine.meta.kinds import Kind, Object
from herder.engine.wire import User
from herder.sim import loop
from herder.sim.faults import NONE, ROUGH, Faults
from herder.sim.world import World
from tests.support.builders import new_manifest

MINUTES = 60.0
WORKSPACE, NAME = "fleet-default", "meadow"


class Manager:
    def __init__(self, seed: int, faults: Faults = NONE) -> None:
        self.management_names: set[str] = set()
        self.world = World(
            seed,
            [management_cluster.CONTROLLER, provisioning_cluster.CONTROLLER, cluster_registration_token.CONTROLLER],
            crds=[
                *CRDS,
                *RKE_CRDS,
                SETTING_CRD,
            ],  # without the CRDs of Cluster API, which imported clusters do not need
            performers={RENEW: self.renew},
            faults=faults,
            watched=(MANAGEMENT_CLUSTER,),
            invariant=self.invariant,
        )

    async def renew(self, arguments: Mapping[str, Any]) -> Object:
        return await Renewal(self.world.client, self.world.now, self.world.random.randbytes)(arguments)

    def invariant(self, _kind: Kind, _event: str, obj: Object) -> None:
        self.management_names.add(obj["metadata"]["name"])
        assert len(self.management_names - {names.LOCAL}) <= 1, "a cluster has one management Cluster"

    # --- actions --------------------------------------------------------------------------------------------------

    async def create_cluster(self) -> str:
        await self.world.client.create(NAMESPACE.resource, new_manifest(NAMESPACE, WORKSPACE))
        cluster = new_manifest(PROVISIONING_CLUSTER, NAME, WORKSPACE, spec={})
        await self.world.client.create(PROVISIONING_CLUSTER.resource, cluster, namespace=WORKSPACE)
        await self.world.until(self.has_token)
        return str((await self.provisioning())["status"]["clusterName"])

    async def connect_agent(self, cluster: str) -> None:
        endpoint = {"status": {"apiEndpoint": "https://10.43.0.1:443"}}
        await self.world.client.patch(MANAGEMENT_CLUSTER.resource, cluster, endpoint, subresource="status")
        await self._set_connected_since(cluster, timestamp(self.world.now()))

    async def disconnect_agent(self, cluster: str) -> None:
        await self._set_connected_since(cluster, None)

    async def _set_connected_since(self, cluster: str, since: str | None) -> None:
        patch = {"metadata": {"annotations": {names.CONNECTED_SINCE: since}}}
        await self.world.client.patch(MANAGEMENT_CLUSTER.resource, cluster, patch)

    # --- state ----------------------------------------------------------------------------------------------------

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

    async def has_secret(self, cluster: str, registration: str) -> bool:
        try:
            await self.tokens(cluster, registration)
        except NotFound:
            return False
        return True

    async def is_replaced(self, cluster: str, registration: str, known: Tokens) -> bool:
        return await self.has_secret(cluster, registration) and (await self.tokens(cluster, registration)) != known

    async def has_condition(self, kind: Kind, type_: str, status: str, name: str = "") -> bool:
        obj = await (self.provisioning() if kind == PROVISIONING_CLUSTER else self.management(name))
        return (find(obj, type_) or {}).get("status") == status

    async def is_gone(self, kind: Kind) -> bool:
        return not [each for each in (await self.world.client.list_all(kind.resource)).items if _is_owned(each)]


def _is_owned(obj: Object) -> bool:
    name = str(obj["metadata"]["name"])
    return name.startswith("c-m-") or name in {NAME, names.DEFAULT_TOKEN}


async def run_lifecycle(manager: Manager) -> None:
    async with manager.world as world:
        cluster = await manager.create_cluster()
        assert not await manager.has_condition(PROVISIONING_CLUSTER, clusters.READY, "True")
        await manager.connect_agent(cluster)
        await world.until(lambda: manager.has_condition(PROVISIONING_CLUSTER, clusters.READY, "True"))
        await manager.disconnect_agent(cluster)
        await world.until(lambda: manager.has_condition(PROVISIONING_CLUSTER, clusters.READY, "False"))
        assert not (await manager.provisioning())["status"]["ready"]
        ready = find(await manager.management(cluster), clusters.READY) or {}
        assert (ready["reason"], ready["message"]) == ("Disconnected", "Cluster agent is not connected")
        role = await world.client.get(ROLE.resource, names.TOKEN_READER, namespace=cluster)
        assert role["rules"][0]["resourceNames"] == ["crt-token-default-token"]
        await world.client.delete(PROVISIONING_CLUSTER.resource, NAME, namespace=WORKSPACE)
        for kind in (PROVISIONING_CLUSTER, MANAGEMENT_CLUSTER, REGISTRATION_TOKEN, NAMESPACE):
            await world.until(partial(manager.is_gone, kind))


def test_a_cluster_is_imported_connected_disconnected_and_deleted() -> None:
    loop.run(run_lifecycle(Manager(0)))


@pytest.mark.parametrize("seed", range(1, 7))
def test_nothing_is_created_twice_despite_conflicts_losses_and_crashes(seed: int) -> None:
    loop.run(run_lifecycle(Manager(seed, ROUGH)))


def test_a_provisioning_cluster_is_deleted_with_its_management_cluster() -> None:
    async def run(manager: Manager) -> None:
        async with manager.world as world:
            cluster = await manager.create_cluster()
            await world.client.delete(MANAGEMENT_CLUSTER.resource, cluster)
            for kind in (PROVISIONING_CLUSTER, MANAGEMENT_CLUSTER, NAMESPACE):
                await world.until(partial(manager.is_gone, kind))

    loop.run(run(Manager(0)))


class _SeveralClusters(Manager):
    def invariant(self, _kind: Kind, _event: str, _obj: Object) -> None:
        """Clusters with different management Clusters are expected."""


def test_an_editor_cannot_take_the_generated_name_of_a_deleted_cluster() -> None:
    """Kubeconfigs outlive a cluster. Admission rejects the name, and the controller does not use one that is stored."""

    async def run(manager: Manager) -> None:
        async with manager.world as world:
            install_tenancy_admission(world.server, world.client)
            former = await manager.create_cluster()
            await world.client.delete(PROVISIONING_CLUSTER.resource, NAME, namespace=WORKSPACE)
            await world.until(partial(manager.is_gone, MANAGEMENT_CLUSTER))
            rules = [{"apiGroups": [PROVISIONING_CLUSTER.group], "resources": ["*"], "verbs": ["*"]}]
            role = new_manifest(ROLE, "editor", WORKSPACE) | {"rules": rules}
            reference = {"apiGroup": ROLE.group, "kind": ROLE.kind, "name": "editor"}
            subjects = [{"apiGroup": ROLE.group, "kind": "User", "name": "editor"}]
            binding = new_manifest(ROLE_BINDING, "editor", WORKSPACE) | {"roleRef": reference, "subjects": subjects}
            await world.client.create(ROLE.resource, role, namespace=WORKSPACE)
            await world.client.create(ROLE_BINDING.resource, binding, namespace=WORKSPACE)
            editor = Client(InProcess(world.server, User("editor", groups=("system:authenticated",))))
            asking = new_manifest(PROVISIONING_CLUSTER, "asking", WORKSPACE, spec={})
            asking["metadata"]["annotations"] = {names.MANAGEMENT_NAME: former}
            with pytest.raises(Forbidden):
                await editor.create(PROVISIONING_CLUSTER.resource, asking, namespace=WORKSPACE)
            trap = new_manifest(PROVISIONING_CLUSTER, "trap", WORKSPACE, spec={})
            await editor.create(PROVISIONING_CLUSTER.resource, trap, namespace=WORKSPACE)
            await asyncio.sleep(1 * MINUTES)
            status = {"status": {"clusterName": former}}
            kind = PROVISIONING_CLUSTER.resource
            with pytest.raises(Forbidden):
                await editor.patch(kind, "trap", status, namespace=WORKSPACE, subresource="status")
            # As before this rule.
            await world.client.patch(kind, "trap", status, namespace=WORKSPACE, subresource="status")
            await asyncio.sleep(1 * MINUTES)
            listed = (await world.client.list_all(MANAGEMENT_CLUSTER.resource)).items
            assert former not in [each["metadata"]["name"] for each in listed]
            found = await world.client.get(kind, "trap", namespace=WORKSPACE)
            assert found["status"]["clusterName"] in [each["metadata"]["name"] for each in listed]

    loop.run(run(_SeveralClusters(0)))


def test_the_local_cluster_exists_as_a_pair_and_is_always_connected() -> None:
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


def test_an_expired_token_is_replaced_and_valid_during_its_grace_period() -> None:
    async def run(manager: Manager) -> None:
        async with manager.world as world:
            cluster = await manager.create_cluster()
            spec = {"clusterName": cluster, "ttl": 30, "gracePeriod": 10}
            short = new_manifest(REGISTRATION_TOKEN, "short", cluster, spec=spec)
            await world.client.create(REGISTRATION_TOKEN.resource, short, namespace=cluster)
            await world.until(lambda: manager.has_secret(cluster, "short"))
            first = await manager.tokens(cluster, "short")
            await asyncio.sleep(30 * MINUTES - 5)
            assert await manager.tokens(cluster, "short") == first, "not before it expires"
            await world.until(lambda: manager.is_replaced(cluster, "short", first), within=3 * MINUTES + 10)
            second, now = await manager.tokens(cluster, "short"), world.now()
            assert now >= first.expires
            assert second.token != first.token
            assert second.accepts(second.token, now)
            assert second.accepts(first.token, now), "agents still have the old token until they get the new one"
            await asyncio.sleep(10 * MINUTES)
            assert not second.accepts(first.token, world.now()), "not after the grace period"
            await asyncio.sleep(20 * MINUTES)
            await world.until(lambda: manager.is_replaced(cluster, "short", second), within=3 * MINUTES + 10)
            third = await manager.tokens(cluster, "short")
            assert not third.accepts(first.token, world.now())

    loop.run(run(Manager(0)))


def test_a_deleted_token_secret_is_recreated_with_another_token() -> None:
    async def run(manager: Manager) -> None:
        async with manager.world as world:
            cluster = await manager.create_cluster()
            first = await manager.tokens(cluster)
            await world.client.delete(SECRET.resource, "crt-token-default-token", namespace=cluster)

            await world.until(lambda: manager.is_replaced(cluster, names.DEFAULT_TOKEN, first))
            assert not (await manager.tokens(cluster)).accepts(first.token, world.now())

    loop.run(run(Manager(0)))
