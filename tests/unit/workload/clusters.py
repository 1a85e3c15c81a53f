"""A management cluster in this process, CAs of workload clusters in it, and clients of workload clusters."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import yaml

from herder.api.capi.kinds import SECRET
from herder.api.capi.names import SECRET_TYPE, authority_secret
from herder.engine.apiserver.build import assemble
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.apiserver.pki import client_certificate
from herder.engine.client import kubeconfig
from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.wire import User
from herder.workload.authorities import make_authority, usable

NAMESPACE = "default"
ADMIN = User("admin", groups=("system:masters", "system:authenticated"))


def clock() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def management() -> AsyncIterator[Client]:
    server = await assemble(None, clock=clock, entropy=os.urandom)
    try:
        yield Client(InProcess(server, ADMIN))
    finally:
        await server.stop()


async def create_authority(client: Client, cluster: str) -> dict[str, str]:
    data = await make_authority({"name": cluster}, clock=clock)
    secret = {
        "metadata": {"name": authority_secret(cluster), "namespace": NAMESPACE},
        "type": SECRET_TYPE,
        "data": data,
    }
    await client.create(SECRET.resource, {"apiVersion": "v1", "kind": "Secret", **secret}, namespace=NAMESPACE)
    return data


def workload_client(authority: dict[str, str], served: dict[str, Any]) -> Client:
    """A client with the administrator's certificate of the cluster."""
    signer = usable(authority, "test")
    pair = client_certificate(signer, "kubernetes-admin", ("system:masters",), now=clock())
    config = kubeconfig.build(
        server=f"https://{served['host']}:{served['port']}",
        ca=signer.certificate_pem,
        certificate=pair.certificate_pem,
        key=pair.key_pem,
    )
    return Client(HttpTransport(kubeconfig.parse(yaml.safe_dump(config))))
