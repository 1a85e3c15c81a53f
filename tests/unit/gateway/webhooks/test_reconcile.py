"""The webhook server with an API server: shared and rotated certificates, and reconciled configurations."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest

from herder.api.capi.core import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS
from herder.api.capi.kinds import MACHINE as MACHINE_KIND
from herder.api.capi.kinds import SECRET
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import GroupVersionResource
from herder.gateway.webhooks import reconcile
from herder.gateway.webhooks.configurations import CLUSTER_API, CLUSTER_API_NAME, MACHINES, MACHINES_NAME, Url
from herder.gateway.webhooks.reconcile import SECRET_NAME, install, keep, remove
from herder.gateway.webhooks.server import Webhooks
from tests.unit.api.capi.admission.objects import MACHINE
from tests.unit.engine.runner.inprocess import served
from tests.unit.gateway.webhooks.test_reviews import VALIDATE, new_review

NAMESPACE = "herder-system"


class Clock:
    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with served() as server:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        await server.client.create(GroupVersionResource("", "v1", "namespaces"), namespace)
        yield server.client


class Replica:
    """A webhook server that listens."""

    def __init__(self, clock: Clock) -> None:
        self.webhooks = Webhooks(clock=clock)

    async def __aenter__(self) -> Replica:
        host, port = await self.webhooks.start("127.0.0.1", 0)
        self.url = f"https://{host}:{port}"
        self.address = Url(self.url)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.webhooks.stop()

    def caller(self, bundle: str) -> aiohttp.ClientSession:
        """A client like an API server, which trusts the CA bundle of the configuration."""
        context = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, limit=1))

    async def is_allowed(self, session: aiohttp.ClientSession) -> bool:
        async with session.post(self.url + VALIDATE, json=new_review(MACHINE_KIND, MACHINE)) as response:
            assert response.status == 200
            return bool((await response.json())["response"]["allowed"])


async def bundle_of(client: Client) -> str:
    configuration = await client.get(MUTATING_WEBHOOKS.resource, CLUSTER_API_NAME)
    bundles = {hook["clientConfig"]["caBundle"] for hook in configuration["webhooks"]}
    assert len(bundles) == 1
    return str(bundles.pop())


async def serving_certificate(client: Client) -> str:
    secret = await client.get(SECRET.resource, SECRET_NAME, namespace=NAMESPACE)
    return str(secret["data"]["tls.crt"])


async def eventually(check: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not await check():
            await asyncio.sleep(0.01)


async def test_an_api_server_can_call_installed_webhooks(client: Client, clock: Clock) -> None:
    async with Replica(clock) as replica:
        await install(client, replica.webhooks, replica.address, clock=clock)
        async with replica.caller(await bundle_of(client)) as session:
            assert await replica.is_allowed(session)
            async with session.get(replica.url + VALIDATE) as response:
                assert response.status == 405
            async with session.post(replica.url + "/elsewhere") as response:
                assert response.status == 404
            async with session.post(replica.url + VALIDATE, data=b"{}") as response:
                assert (response.status, (await response.json())["reason"]) == (400, "BadRequest")


async def test_replicas_that_start_together_share_one_secret(client: Client, clock: Clock) -> None:
    async with Replica(clock) as one, Replica(clock) as two:
        await asyncio.gather(
            *(install(client, replica.webhooks, one.address, clock=clock) for replica in (one, two, one, two))
        )
        for replica in (one, two):
            async with replica.caller(await bundle_of(client)) as session:
                assert await replica.is_allowed(session)


async def test_remove_deletes_all_configurations(client: Client, clock: Clock) -> None:
    async with Replica(clock) as replica:
        await install(client, replica.webhooks, replica.address, clock=clock)
    await remove(client)
    for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        assert (await client.list(kind.resource)).items == []
    await remove(client)


async def test_remove_can_be_limited_to_cluster_api(client: Client, clock: Clock) -> None:
    async with Replica(clock) as replica:
        for configurations in (CLUSTER_API, MACHINES):
            await install(client, replica.webhooks, replica.address, configurations, clock=clock)
    await remove(client, CLUSTER_API)
    remaining = (await client.list(VALIDATING_WEBHOOKS.resource)).items
    assert [each["metadata"]["name"] for each in remaining] == [MACHINES_NAME]


async def test_a_damaged_secret_is_replaced(client: Client, clock: Clock) -> None:
    async with Replica(clock) as replica:
        await install(client, replica.webhooks, replica.address, clock=clock)
        await client.patch(SECRET.resource, SECRET_NAME, {"data": {"tls.key": "bm8="}}, namespace=NAMESPACE)
        await install(client, replica.webhooks, replica.address, clock=clock)
        async with replica.caller(await bundle_of(client)) as session:
            assert await replica.is_allowed(session)


async def test_a_renewed_certificate_is_used_for_new_connections_only(client: Client, clock: Clock) -> None:
    async with Replica(clock) as replica:
        clock.now -= timedelta(days=61)  # TLS itself uses the clock of the machine
        await install(client, replica.webhooks, replica.address, clock=clock)
        bundle, first = await bundle_of(client), await serving_certificate(client)
        async with replica.caller(bundle) as before, replica.caller(bundle) as after:
            assert await replica.is_allowed(before)
            clock.now += timedelta(days=61)
            await install(client, replica.webhooks, replica.address, clock=clock)
            assert await serving_certificate(client) != first
            assert await replica.is_allowed(before)
            assert await replica.is_allowed(after)


async def test_a_new_ca_is_trusted_before_it_signs(client: Client, clock: Clock) -> None:
    async with Replica(clock) as replica:
        await install(client, replica.webhooks, replica.address, clock=clock)
        old = await bundle_of(client)
        clock.now += timedelta(days=480)
        await install(client, replica.webhooks, replica.address, clock=clock)  # the serving certificate has expired
        clock.now += timedelta(days=10)
        certificate_before = await serving_certificate(client)
        await install(client, replica.webhooks, replica.address, clock=clock)
        both = await bundle_of(client)
        assert both != old
        assert base64.b64decode(both).endswith(base64.b64decode(old))
        assert await serving_certificate(client) == certificate_before
        clock.now += timedelta(hours=1)
        await install(client, replica.webhooks, replica.address, clock=clock)
        assert await serving_certificate(client) != certificate_before
        assert await bundle_of(client) == both
        clock.now += timedelta(hours=1)
        await install(client, replica.webhooks, replica.address, clock=clock)
        assert len(await bundle_of(client)) < len(both)


async def test_removed_or_changed_configurations_are_restored(
    client: Client, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "_PAUSE_SECONDS", 0.01)

    async def is_complete() -> bool:
        try:
            configurations = [
                await client.get(kind.resource, CLUSTER_API_NAME) for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)
            ]
        except NotFound:
            return False
        return all(hook["clientConfig"].get("caBundle") == bundle for one in configurations for hook in one["webhooks"])

    async with Replica(clock) as replica:
        await install(client, replica.webhooks, replica.address, clock=clock)
        bundle = await bundle_of(client)
        reconciling = asyncio.ensure_future(keep(client, replica.webhooks, replica.address, clock=clock))
        try:
            await client.delete(VALIDATING_WEBHOOKS.resource, CLUSTER_API_NAME)
            await eventually(is_complete)
            broken = [{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": ""}]
            await client.patch(
                MUTATING_WEBHOOKS.resource, CLUSTER_API_NAME, broken, content_type="application/json-patch+json"
            )
            await eventually(is_complete)
            await client.delete(SECRET.resource, SECRET_NAME, namespace=NAMESPACE)

            async def is_new() -> bool:
                return await bundle_of(client) != bundle

            await eventually(is_new)
        finally:
            reconciling.cancel()
            await asyncio.gather(reconciling, return_exceptions=True)


async def test_failed_writes_are_retried(client: Client, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "_PAUSE_SECONDS", 0.01)
    async with Replica(clock) as replica:
        reconciling = asyncio.ensure_future(
            keep(client, replica.webhooks, replica.address, clock=clock, namespace="not-there-yet")
        )
        try:
            await asyncio.sleep(0.05)
            assert not reconciling.done()
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "not-there-yet"}}
            await client.create(GroupVersionResource("", "v1", "namespaces"), namespace)

            async def is_installed() -> bool:
                try:
                    return bool(await bundle_of(client))
                except NotFound:
                    return False

            await eventually(is_installed)
        finally:
            reconciling.cancel()
            await asyncio.gather(reconciling, return_exceptions=True)
