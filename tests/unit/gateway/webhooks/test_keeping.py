"""The webhook server on an API server: certificates shared, rotated and trusted, configurations kept in force."""

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
from tests.unit.gateway.webhooks.test_reviews import VALIDATE, question

SPACE = "herder-system"


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
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}
        await server.client.create(GroupVersionResource("", "v1", "namespaces"), space)
        yield server.client


class Replica:
    """A webhook server that can be reached."""

    def __init__(self, clock: Clock) -> None:
        self.webhooks = Webhooks(clock=clock)

    async def __aenter__(self) -> Replica:
        host, port = await self.webhooks.start("127.0.0.1", 0)
        self.url = f"https://{host}:{port}"
        self.place = Url(self.url)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.webhooks.stop()

    def caller(self, bundle: str) -> aiohttp.ClientSession:
        """As an API server connects: by what its configuration says is to be trusted."""
        context = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, limit=1))

    async def asked(self, session: aiohttp.ClientSession) -> bool:
        async with session.post(self.url + VALIDATE, json=question(MACHINE_KIND, MACHINE)) as answer:
            assert answer.status == 200
            return bool((await answer.json())["response"]["allowed"])


async def bundle_of(client: Client) -> str:
    configuration = await client.get(MUTATING_WEBHOOKS.resource, CLUSTER_API_NAME)
    bundles = {hook["clientConfig"]["caBundle"] for hook in configuration["webhooks"]}
    assert len(bundles) == 1
    return str(bundles.pop())


async def serving_certificate(client: Client) -> str:
    secret = await client.get(SECRET.resource, SECRET_NAME, namespace=SPACE)
    return str(secret["data"]["tls.crt"])


async def eventually(check: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not await check():
            await asyncio.sleep(0.01)


async def test_after_installing_an_api_server_is_answered(client: Client, clock: Clock) -> None:
    async with Replica(clock) as replica:
        await install(client, replica.webhooks, replica.place, clock=clock)
        async with replica.caller(await bundle_of(client)) as session:
            assert await replica.asked(session)
            async with session.get(replica.url + VALIDATE) as answer:
                assert answer.status == 405
            async with session.post(replica.url + "/elsewhere") as answer:
                assert answer.status == 404
            async with session.post(replica.url + VALIDATE, data=b"{}") as answer:
                assert (answer.status, (await answer.json())["reason"]) == (400, "BadRequest")


async def test_replicas_that_start_together_share_one_secret(client: Client, clock: Clock) -> None:
    async with Replica(clock) as one, Replica(clock) as two:
        await asyncio.gather(
            *(install(client, replica.webhooks, one.place, clock=clock) for replica in (one, two, one, two))
        )
        for replica in (one, two):
            async with replica.caller(await bundle_of(client)) as session:
                assert await replica.asked(session)


async def test_once_removed_nobody_is_asked(client: Client, clock: Clock) -> None:
    async with Replica(clock) as replica:
        await install(client, replica.webhooks, replica.place, clock=clock)
    await remove(client)
    for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        assert (await client.list(kind.resource)).items == []
    await remove(client)


async def test_the_core_s_are_removed_alone(client: Client, clock: Clock) -> None:
    async with Replica(clock) as replica:
        for configurations in (CLUSTER_API, MACHINES):
            await install(client, replica.webhooks, replica.place, configurations, clock=clock)
    await remove(client, CLUSTER_API)
    left = (await client.list(VALIDATING_WEBHOOKS.resource)).items
    assert [each["metadata"]["name"] for each in left] == [MACHINES_NAME]


async def test_a_damaged_secret_is_replaced(client: Client, clock: Clock) -> None:
    async with Replica(clock) as replica:
        await install(client, replica.webhooks, replica.place, clock=clock)
        await client.patch(SECRET.resource, SECRET_NAME, {"data": {"tls.key": "bm8="}}, namespace=SPACE)
        await install(client, replica.webhooks, replica.place, clock=clock)
        async with replica.caller(await bundle_of(client)) as session:
            assert await replica.asked(session)


async def test_a_renewed_certificate_is_shown_to_the_next_connection_and_open_ones_go_on(
    client: Client, clock: Clock
) -> None:
    async with Replica(clock) as replica:
        clock.now -= timedelta(days=61)  # TLS itself knows no clock but the machine's
        await install(client, replica.webhooks, replica.place, clock=clock)
        bundle, first = await bundle_of(client), await serving_certificate(client)
        async with replica.caller(bundle) as before, replica.caller(bundle) as after:
            assert await replica.asked(before)
            clock.now += timedelta(days=61)
            await install(client, replica.webhooks, replica.place, clock=clock)
            assert await serving_certificate(client) != first
            assert await replica.asked(before)
            assert await replica.asked(after)


async def test_a_new_authority_is_trusted_before_it_signs(client: Client, clock: Clock) -> None:
    async with Replica(clock) as replica:
        await install(client, replica.webhooks, replica.place, clock=clock)
        old = await bundle_of(client)
        clock.now += timedelta(days=480)
        await install(client, replica.webhooks, replica.place, clock=clock)  # what is served is long expired
        clock.now += timedelta(days=10)
        served_before = await serving_certificate(client)
        await install(client, replica.webhooks, replica.place, clock=clock)
        both = await bundle_of(client)
        assert both != old
        assert base64.b64decode(both).endswith(base64.b64decode(old))
        assert await serving_certificate(client) == served_before
        clock.now += timedelta(hours=1)
        await install(client, replica.webhooks, replica.place, clock=clock)
        assert await serving_certificate(client) != served_before
        assert await bundle_of(client) == both
        clock.now += timedelta(hours=1)
        await install(client, replica.webhooks, replica.place, clock=clock)
        assert len(await bundle_of(client)) < len(both)


async def test_what_others_remove_or_change_is_put_back(
    client: Client, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "_PAUSE_SECONDS", 0.01)

    async def is_complete() -> bool:
        try:
            found = [
                await client.get(kind.resource, CLUSTER_API_NAME) for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)
            ]
        except NotFound:
            return False
        return all(hook["clientConfig"].get("caBundle") == bundle for one in found for hook in one["webhooks"])

    async with Replica(clock) as replica:
        await install(client, replica.webhooks, replica.place, clock=clock)
        bundle = await bundle_of(client)
        keeper = asyncio.ensure_future(keep(client, replica.webhooks, replica.place, clock=clock))
        try:
            await client.delete(VALIDATING_WEBHOOKS.resource, CLUSTER_API_NAME)
            await eventually(is_complete)
            broken = [{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": ""}]
            await client.patch(
                MUTATING_WEBHOOKS.resource, CLUSTER_API_NAME, broken, content_type="application/json-patch+json"
            )
            await eventually(is_complete)
            await client.delete(SECRET.resource, SECRET_NAME, namespace=SPACE)

            async def is_new() -> bool:
                return await bundle_of(client) != bundle

            await eventually(is_new)
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)


async def test_where_nothing_can_be_written_it_keeps_trying(
    client: Client, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "_PAUSE_SECONDS", 0.01)
    async with Replica(clock) as replica:
        keeper = asyncio.ensure_future(
            keep(client, replica.webhooks, replica.place, clock=clock, namespace="not-there-yet")
        )
        try:
            await asyncio.sleep(0.05)
            assert not keeper.done()
            space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "not-there-yet"}}
            await client.create(GroupVersionResource("", "v1", "namespaces"), space)

            async def is_installed() -> bool:
                try:
                    return bool(await bundle_of(client))
                except NotFound:
                    return False

            await eventually(is_installed)
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
