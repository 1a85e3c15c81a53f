"""Another core is detected when it appears and when it is removed; the inventory lists the running providers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from herder.api.capi.core import DEPLOYMENT, Mode, Verdict
from herder.api.capi.inventory import NAMESPACE, PROVIDER_CRD, PROVIDERS
from herder.app.core.detection import CoreDetector, gather, register_providers, unregister_core
from herder.app.host.process import wall_clock
from herder.app.install import install_kinds
from herder.engine.client.client import Client
from herder.engine.meta.errors import AlreadyExists
from herder.engine.meta.kinds import GroupVersionResource
from tests.conformance.objects import deployment
from tests.support.api import TIMEOUT
from tests.support.engines import Engine

NAMESPACES = GroupVersionResource("", "v1", "namespaces")


@pytest.fixture
async def client(real_engine: Engine) -> AsyncIterator[Client]:
    """A client of a server without controllers, which would react to the fake core."""
    client = real_engine.client()
    await install_kinds(client, [PROVIDER_CRD])
    for name in (NAMESPACE, "capi-system"):
        with contextlib.suppress(AlreadyExists):
            await client.create(NAMESPACES, {"metadata": {"name": name}})
    yield client
    await client.close()


async def test_another_core_is_detected_when_it_appears_and_disappears(client: Client) -> None:
    detector = CoreDetector(client, Mode.AUTO, clock=wall_clock)
    first = await detector.look()
    assert first.run
    verdicts: asyncio.Queue[Verdict] = asyncio.Queue()
    following = asyncio.create_task(detector.follow(first, verdicts.put_nowait))
    core = deployment("capi-controller-manager")
    core["metadata"]["labels"] = {"cluster.x-k8s.io/provider": "cluster-api"}
    core["spec"]["replicas"] = 1
    try:
        async with asyncio.timeout(TIMEOUT):
            await client.create(DEPLOYMENT.resource, core, namespace="capi-system")
            verdict = await verdicts.get()
            assert not verdict.run
            assert "Deployment capi-system/capi-controller-manager" in verdict.reason
            await client.delete(DEPLOYMENT.resource, "capi-controller-manager", namespace="capi-system")
            assert (await verdicts.get()).run
    finally:
        following.cancel()


async def test_running_providers_are_in_the_inventory(client: Client) -> None:
    async def provider_names() -> list[str]:
        providers = await client.list_all(PROVIDERS.resource, namespace=NAMESPACE)
        return [provider["metadata"]["name"] for provider in providers.items]

    in_memory = ["bootstrap-inmemory", "control-plane-inmemory", "infrastructure-inmemory"]
    await register_providers(client, core=True, in_memory=True)
    assert await provider_names() == sorted(["cluster-api", *in_memory])
    assert (await CoreDetector(client, Mode.OWN, clock=wall_clock).look()).run
    await unregister_core(client)
    assert await provider_names() == in_memory


async def test_a_core_inside_the_api_server_disables_other_built_in_cores(client: Client) -> None:
    await register_providers(client, core=True, in_memory=False, inside=True)
    inside = CoreDetector(client, Mode.AUTO, clock=wall_clock, inside=True)
    outside = CoreDetector(client, Mode.AUTO, clock=wall_clock)
    assert ((await inside.look()).run, (await outside.look()).run) == (True, False)
    assert "herder up runs one in the process of this API server" in (await outside.look()).reason
    await unregister_core(client)
    assert (await outside.look()).run


async def test_the_inventory_entry_of_another_core_is_kept(client: Client) -> None:
    theirs = {
        "metadata": {"name": "cluster-api", "namespace": NAMESPACE},
        "type": "CoreProvider",
        "version": "v1.12.0",
    }
    await client.create(
        PROVIDERS.resource, {**theirs, "apiVersion": PROVIDERS.api_version, "kind": "Provider"}, namespace=NAMESPACE
    )
    await unregister_core(client)
    providers = (await gather(client, wall_clock())).providers
    assert [provider["version"] for provider in providers if provider["type"] == "CoreProvider"] == ["v1.12.0"]
    await client.delete(PROVIDERS.resource, "cluster-api", namespace=NAMESPACE)
