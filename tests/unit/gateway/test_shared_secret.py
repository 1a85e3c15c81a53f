"""The Secret that all replicas of a gateway share: created by the first, adopted by the others."""

from __future__ import annotations

import asyncio
import base64
import os

import pytest

from herder.api.capi.kinds import SECRET
from herder.api.management.names import SYSTEM_NAMESPACE, TUNNEL_ID, TUNNEL_TOKEN
from herder.app.install import ensure_namespace
from herder.engine.client.client import Client
from herder.engine.meta.errors import StatusError
from herder.gateway.ha.peers import Peers
from herder.gateway.ha.replicas import GATEWAY, LEASE, Replicas
from herder.gateway.ha.shared_secret import SHARED_SECRET, shared
from herder.tunnel.registry import Registry
from tests.unit.engine.runtime.envtest import environment, now
from tests.unit.gateway.managed_clusters import authority


async def test_all_replicas_use_the_secret_of_the_first() -> None:
    async with environment() as env:
        await ensure_namespace(env.outside, SYSTEM_NAMESPACE)
        one, other = authority("one"), authority("other")
        both = await asyncio.gather(*(shared(env.outside, own, os.urandom) for own in (one, other)))
        assert both[0].authority.certificate == both[1].authority.certificate
        assert both[0].token == both[1].token
        assert both[0].token not in repr(both[0])
        assert (await shared(env.outside, authority("third"), os.urandom)).token == both[0].token


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"tls.crt": "nonsense"}, "tls.crt: not a PEM certificate"),
        ({"tls.key": "nonsense"}, "tls.key: not a PEM private key"),
        ({"peerToken": "short"}, "peerToken: must be at least"),
        ({"peerToken": None}, "peerToken: must be at least"),
    ],
)
async def test_an_invalid_key_is_reported_by_its_name(data: dict[str, str | None], message: str) -> None:
    async with environment() as env:
        await ensure_namespace(env.outside, SYSTEM_NAMESPACE)
        await shared(env.outside, authority("one"), os.urandom)
        patch = {"data": {key: value and base64.b64encode(value.encode()).decode() for key, value in data.items()}}
        await env.outside.patch(SECRET.resource, SHARED_SECRET, patch, namespace=SYSTEM_NAMESPACE)
        with pytest.raises(StatusError, match=f"Secret cattle-system/herder-gateway: data.{message}"):
            await shared(env.outside, authority("two"), os.urandom)


async def _create_lease(client: Client, name: str) -> None:
    meta = {"name": name, "namespace": SYSTEM_NAMESPACE, "labels": {GATEWAY: "true"}}
    await client.apply(LEASE.resource, {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": meta})


async def test_a_replica_is_authenticated_by_its_name_and_the_token() -> None:
    async with environment() as env:
        await ensure_namespace(env.outside, SYSTEM_NAMESPACE)
        shared_secret = await shared(env.outside, authority("one"), os.urandom)
        await _create_lease(env.outside, "other")
        replicas = Replicas(env.outside, "this", "", now)
        peers = Peers(Registry(), replicas, shared_secret)
        running = asyncio.ensure_future(replicas.run())
        try:
            await replicas.ready()
            cases = {
                ("other", shared_secret.token): "other",
                ("other", ""): "",
                ("other", "guessed"): "",
                ("other", shared_secret.token.upper()): "",
                ("unknown", shared_secret.token): "",
                ("this", shared_secret.token): "",
                ("", shared_secret.token): "",
            }
            for (name, token), admitted in cases.items():
                assert peers.admitted({TUNNEL_ID: name, TUNNEL_TOKEN: token}) == admitted
            assert peers.admitted({}) == ""
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
