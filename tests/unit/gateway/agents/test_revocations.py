"""A user whose rights were revoked uses the cluster only after the cluster has followed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from herder.api.identity import roles
from herder.api.identity.builtin_roles import ROLE_TEMPLATES
from herder.api.identity.roles import CLUSTER_ROLE_BINDING
from herder.api.machines.jobs import ROLE_BINDING
from herder.api.management.kinds import CLUSTER_BINDING, PROJECT_BINDING, ROLE_TEMPLATE
from herder.api.management.registration import Tokens
from herder.engine.client.client import Client
from herder.engine.wire import User
from herder.gateway.agents import granted_rights
from herder.gateway.agents.granted_rights import LEFTOVERS, NOT_YET
from herder.gateway.agents.revocations import MAX_SUBJECTS
from tests.support.builders import new_manifest
from tests.unit.gateway.agents.test_granted_rights import (
    BOB,
    CLUSTER,
    PROJECT,
    Site,
    create_member,
    downstream,
    grant,
    restored_site,
    rights_of_today,
    status_of,
    template_is_gone,
)
from tests.unit.gateway.agents.test_returning_agents import CA, Harness, pem
from tests.unit.gateway.gateway_server import GatewayServer, running_gateway
from tests.unit.gateway.managed_clusters import create_managed_cluster

ANN = User("ann")


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the gateway has noticed a change."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def delete_binding(site: Site) -> None:
    await site.manager.delete(CLUSTER_BINDING.resource, "b", namespace=CLUSTER)


async def delete_held_binding(site: Site) -> None:
    """It has the finalizer until its rights are revoked."""
    patch = {"metadata": {"finalizers": ["management.herder.io/cluster-binding"]}}
    await site.manager.patch(CLUSTER_BINDING.resource, "b", patch, namespace=CLUSTER)
    await delete_binding(site)


async def delete_project_binding(site: Site) -> None:
    await site.manager.delete(PROJECT_BINDING.resource, "b", namespace=PROJECT)


async def bind_another_user(site: Site) -> None:
    await site.manager.patch(CLUSTER_BINDING.resource, "b", {"userName": "carl"}, namespace=CLUSTER)


REVOCATIONS = (delete_binding, delete_held_binding, delete_project_binding, bind_another_user)


@pytest.mark.parametrize("revoke", REVOCATIONS)
async def test_the_user_of_a_revoked_binding_waits_until_the_cluster_follows(
    revoke: Callable[[Site], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(granted_rights, "RETRY_SECONDS", 0.0)
    async with restored_site() as site:
        await rights_of_today(site)
        assert await site.rights.compare(CLUSTER, BOB) == ""
        await revoke(site)
        await until(lambda: not site.rights.are_known(CLUSTER, BOB))
        assert site.rights.are_known(CLUSTER, ANN), "it does not concern other users"
        assert await site.rights.compare(CLUSTER, BOB) == LEFTOVERS
        for kind, namespace in ((CLUSTER_ROLE_BINDING, ""), (ROLE_BINDING, "web")):
            for each in (await site.cluster.list(kind.resource, namespace=namespace, labels=roles.OWNED_BY)).items:
                await site.cluster.delete(kind.resource, each["metadata"]["name"], namespace=namespace)
        assert await site.rights.compare(CLUSTER, BOB) == ""


async def test_a_revoked_binding_of_a_group_concerns_its_members() -> None:
    async with restored_site() as site:
        fields = {"clusterName": CLUSTER, "groupName": "staff", "roleTemplateName": "cluster-member"}
        binding = new_manifest(CLUSTER_BINDING, "g", CLUSTER, **fields)
        await site.manager.create(CLUSTER_BINDING.resource, binding, namespace=CLUSTER)
        await until(lambda: bool(site.rights._revocations._informers[0].cache.keys()))
        assert await site.rights.compare(CLUSTER, BOB) == ""
        await site.manager.delete(CLUSTER_BINDING.resource, "g", namespace=CLUSTER)
        await until(lambda: not site.rights.are_known(CLUSTER, BOB))
        assert site.rights.are_known(CLUSTER, ANN)


@pytest.mark.parametrize("change", [template_is_gone, None], ids=["deleted", "fewer rules"])
async def test_a_changed_role_template_concerns_all_users(change: Callable[[Site], Any] | None) -> None:
    async with restored_site() as site:
        assert await site.rights.compare(CLUSTER, ANN) == ""
        if change is None:
            await site.manager.patch(ROLE_TEMPLATE.resource, "cluster-member", {"rules": []})
        else:
            await change(site)
        await until(lambda: not site.rights.are_known(CLUSTER, ANN))


async def test_a_comparison_that_began_before_a_revocation_opens_nothing() -> None:
    async with restored_site() as site:
        await site.create(CLUSTER_BINDING, "b", "cluster-member")
        await until(lambda: bool(site.rights._revocations._informers[0].cache.keys()))
        asked, answered = asyncio.Event(), asyncio.Event()
        inner = site.rights._client_of

        async def slow(cluster: str) -> Client:
            asked.set()
            await answered.wait()
            return await inner(cluster)

        site.rights._client_of = slow
        waiting = asyncio.ensure_future(site.rights.compare(CLUSTER, BOB))
        await asked.wait()
        await delete_binding(site)
        await until(lambda: site.rights._revocations.last_of(CLUSTER, BOB) > 0)
        answered.set()
        assert await waiting == NOT_YET


async def test_revocations_of_many_subjects_are_kept_as_one() -> None:
    async with restored_site() as site:
        assert await site.rights.compare(CLUSTER, ANN) == ""
        revocations = site.rights._revocations
        for number in range(MAX_SUBJECTS + 10):
            revocations._add(CLUSTER, ("User", f"u{number}"))
        assert len(revocations._of_subjects[CLUSTER]) == MAX_SUBJECTS + 1
        assert not site.rights.are_known(CLUSTER, ANN)
        site.rights.forget(CLUSTER)
        assert not revocations._of_subjects


# --- over the wire ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["embedded", "real"])
async def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[GatewayServer]:
    async with running_gateway(request.param, tmp_path_factory.mktemp("front")) as server:
        yield server


async def test_rights_that_ended_while_the_agent_was_away_are_not_used_when_it_returns(gateway: GatewayServer) -> None:
    """The manager revokes them when it reaches the cluster again, which takes a while."""
    cluster, token = "c-m-away", os.urandom(27).hex()
    await create_managed_cluster(gateway.client, cluster, Tokens(token, datetime.now(UTC) + timedelta(days=1)))
    harness, member = Harness(gateway, cluster, token), await create_member(gateway, cluster)
    for template in ROLE_TEMPLATES:
        await gateway.client.apply(ROLE_TEMPLATE.resource, template)
    fields = {"userName": "bob", "roleTemplateName": "cluster-owner", "clusterName": cluster}
    former = new_manifest(CLUSTER_BINDING, "former", cluster, **fields)
    await gateway.client.create(CLUSTER_BINDING.resource, former, namespace=cluster)
    await until(lambda: gateway.parts.registration.cluster_of(token) is not None)
    try:
        async with downstream() as api:
            await grant(api.client, former, "cluster-owner")
            agent = await harness.register(pem(CA), api.token, api.address)
            await harness.until_connected(True)
            assert await status_of(member) == 200
            await harness.disconnect(agent)
            await gateway.client.delete(CLUSTER_BINDING.resource, "former", namespace=cluster)
            await harness.register(pem(CA), api.token, api.address)
            await harness.until_connected(True)
            assert await status_of(member) == 503
    finally:
        for client in harness.clients:
            client.stop()
