"""Effects of the planner: tokens and CAs are created once, and referenced objects are read."""

from __future__ import annotations

import base64
import os
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from herder.api.capi.kinds import SECRET
from herder.api.rke.names import KEYS_SECRET_TYPE, TOKENS_SECRET_TYPE
from herder.effects.cluster_ca import ClusterAuthorities
from herder.effects.encryption_key import EncryptionKeys
from herder.effects.join_token import ClusterTokens
from herder.effects.referenced_objects import ReferencedObjects
from herder.engine.apiserver.build import ApiServer, assemble
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.client.client import Client
from herder.sim.world import ADMIN

OWNER = {"apiVersion": "rke.cattle.io/v1", "kind": "RKEControlPlane", "name": "demo", "uid": "1"}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def server() -> tuple[ApiServer, Client]:
    created = await assemble(None, clock=lambda: NOW, entropy=os.urandom)
    return created, Client(InProcess(created, ADMIN), field_manager="tester")


def text(secret: dict[str, Any], key: str) -> str:
    return base64.b64decode(secret["data"][key]).decode()


async def test_tokens_are_created_once() -> None:
    running, client = await server()
    perform = ClusterTokens(client, os.urandom)
    arguments = {"namespace": "default", "name": "demo-rke-state", "owner": OWNER}
    await perform(arguments)
    first = await client.get(SECRET.resource, "demo-rke-state", namespace="default")
    await perform(arguments)
    second = await client.get(SECRET.resource, "demo-rke-state", namespace="default")
    assert first == second
    assert first["type"] == TOKENS_SECRET_TYPE
    tokens = {text(first, key) for key in ("serverToken", "agentToken")}
    assert {len(token) for token in tokens} == {54}
    assert len(tokens) == 2
    assert first["metadata"]["ownerReferences"][0]["kind"] == "RKEControlPlane"
    await running.stop()


async def test_cas_are_created_once_and_existing_ones_are_kept() -> None:
    running, client = await server()
    perform = ClusterAuthorities(client, lambda: NOW)
    arguments = {"namespace": "default", "cluster": "demo", "purposes": ("ca",), "owner": OWNER}
    await perform(arguments)
    first = await client.get(SECRET.resource, "demo-ca", namespace="default")
    await perform({**arguments, "purposes": ("ca", "etcd", "sa", "proxy")})
    assert await client.get(SECRET.resource, "demo-ca", namespace="default") == first
    certificate = x509.load_pem_x509_certificate(text(first, "tls.crt").encode())
    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    accounts = await client.get(SECRET.resource, "demo-sa", namespace="default")
    public = serialization.load_pem_public_key(text(accounts, "tls.crt").encode())
    private = serialization.load_pem_private_key(text(accounts, "tls.key").encode(), None)
    assert private.public_key() == public
    await running.stop()


async def test_encryption_keys_are_added_and_never_replaced() -> None:
    running, client = await server()
    perform = EncryptionKeys(client, os.urandom)
    arguments = {"namespace": "default", "name": "demo-rke-encryption", "cluster": "demo", "owner": OWNER}
    await perform({**arguments, "generation": 1})
    first = await client.get(SECRET.resource, "demo-rke-encryption", namespace="default")
    assert (first["type"], set(first["data"])) == (KEYS_SECRET_TYPE, {"key-1"})
    assert len(base64.b64decode(text(first, "key-1"))) == 32
    for _ in range(2):
        await perform({**arguments, "generation": 2})
    second = await client.get(SECRET.resource, "demo-rke-encryption", namespace="default")
    assert second["data"]["key-1"] == first["data"]["key-1"] != second["data"]["key-2"]
    with pytest.raises(RuntimeError, match="does not belong to this cluster"):
        await perform({**arguments, "owner": {**OWNER, "uid": "another"}, "generation": 3})
    assert set((await client.get(SECRET.resource, "demo-rke-encryption", namespace="default"))["data"]) == {
        "key-1",
        "key-2",
    }
    await running.stop()


async def test_a_referenced_object_is_read_and_a_missing_one_is_none() -> None:
    running, client = await server()
    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "files"}, "data": {"a": "b"}}
    await client.create(ReferencedObjects.KINDS["ConfigMap"].resource, obj, namespace="default")
    read = ReferencedObjects(client)
    found = await read({"kind": "ConfigMap", "namespace": "default", "name": "files"})
    assert found is not None
    assert (found["kind"], found["data"]) == ("ConfigMap", {"a": "b"})
    assert await read({"kind": "Secret", "namespace": "default", "name": "files"}) is None
    await running.stop()
