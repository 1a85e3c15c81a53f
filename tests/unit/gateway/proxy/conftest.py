from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from herder.api.capi.kinds import NAMESPACE
from herder.api.machines.jobs import SERVICE_ACCOUNT
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Kind, Object
from herder.gateway.proxy import Target
from herder.gateway.proxy.impersonation.objects import CLUSTER_ROLE_BINDING
from tests.support.engines import Engine
from tests.support.kube import Authority
from tests.unit.gateway.proxy.proxy_gateway import ALICE, Gateway

CLUSTER = "c-m-downstream"


@pytest.fixture(scope="session")
async def downstream(engine: Engine) -> Target:
    """A cluster as its agent reports it; alice may edit objects in namespaces there."""
    client = engine.client()
    try:
        token = await _agent_token(client)
        await _apply(client, CLUSTER_ROLE_BINDING, _binding("alice-edits", "edit", "User", ALICE.name))
    finally:
        await client.close()
    connection = engine.connection
    return Target(CLUSTER, urlsplit(connection.server).netloc, (connection.ca or b"").decode(), token)


@pytest.fixture(scope="session")
async def gateway(downstream: Target, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    authority = Authority(tmp_path_factory.mktemp("gateway"))
    gateway = await Gateway({CLUSTER: downstream}, authority=authority).start()
    yield gateway
    await gateway.stop()


@pytest.fixture(scope="session")
def alice(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gateway.kubeconfig(tmp_path_factory.mktemp("alice"), CLUSTER, "token-alice")


@pytest.fixture(scope="session")
def mallory(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gateway.kubeconfig(tmp_path_factory.mktemp("mallory"), CLUSTER, "token-mallory")


async def _agent_token(client: Client) -> str:
    """The token of `cattle-system/cattle`, with every right, which an agent registers with."""
    await _apply(client, NAMESPACE, {"metadata": {"name": "cattle-system"}})
    await _apply(client, SERVICE_ACCOUNT, {"metadata": {"name": "cattle", "namespace": "cattle-system"}})
    await _apply(client, CLUSTER_ROLE_BINDING, _binding("cattle", "cluster-admin", "ServiceAccount", "cattle"))
    token_request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 7200},
    }
    response = await client.create(
        SERVICE_ACCOUNT.resource, token_request, namespace="cattle-system", name="cattle", subresource="token"
    )
    return str(response["status"]["token"])


def _binding(name: str, role: str, kind: str, subject: str) -> Object:
    group = "rbac.authorization.k8s.io"
    scope = {"apiGroup": group} if kind == "User" else {"namespace": "cattle-system"}
    return {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": kind, "name": subject} | scope],
    }


async def _apply(client: Client, kind: Kind, obj: Object) -> None:
    await client.apply(kind.resource, {"apiVersion": kind.api_version, "kind": kind.kind} | obj)
