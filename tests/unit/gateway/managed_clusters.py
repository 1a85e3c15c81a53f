"""Managed clusters with registration tokens in an in-process API server, and a manager that agents can dial."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from herder.api.capi.kinds import NAMESPACE, SECRET
from herder.api.management import names
from herder.api.management.clusters import NAMESPACE_CREATED
from herder.api.management.crds import CRDS
from herder.api.management.kinds import MANAGEMENT_CLUSTER, REGISTRATION_TOKEN
from herder.api.management.registration import Tokens, token_secret
from herder.api.settings import Settings
from herder.app.install import install_kinds
from herder.engine import certificates
from herder.engine.certificates import KeyPair
from herder.engine.client.client import Client
from herder.engine.front.hijack import Hijack
from herder.engine.front.http import HttpFront
from herder.engine.wire import Request, Response
from herder.gateway.agents.displacement import Answer
from herder.gateway.agents.registration import Admitted, Registration
from herder.tunnel.registry import Registry
from tests.unit.engine.runtime.envtest import environment

NAMESPACE_READY = {"conditions": [{"type": NAMESPACE_CREATED, "status": "True", "reason": "Created"}]}


async def create_managed_cluster(client: Client, name: str, tokens: Tokens) -> None:
    cluster = {"apiVersion": MANAGEMENT_CLUSTER.api_version, "kind": "Cluster", "metadata": {"name": name}, "spec": {}}
    await client.create(MANAGEMENT_CLUSTER.resource, cluster)
    await client.patch(MANAGEMENT_CLUSTER.resource, name, {"status": NAMESPACE_READY}, subresource="status")
    await client.create(NAMESPACE.resource, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    registration = {
        "apiVersion": REGISTRATION_TOKEN.api_version,
        "kind": REGISTRATION_TOKEN.kind,
        "metadata": {"name": names.DEFAULT_TOKEN, "namespace": name},
        "spec": {"clusterName": name},
    }
    created = await client.create(REGISTRATION_TOKEN.resource, registration, namespace=name)
    owner = {"apiVersion": REGISTRATION_TOKEN.api_version, "kind": REGISTRATION_TOKEN.kind}
    owner |= {"name": names.DEFAULT_TOKEN, "uid": created["metadata"]["uid"]}
    await client.create(SECRET.resource, token_secret(created, tokens, owner), namespace=name)


def authority(name: str) -> KeyPair:
    return certificates.authority(name, now=datetime.now(UTC), life=timedelta(days=1))


def serving_context(signer: KeyPair, address: str = "127.0.0.1") -> ssl.SSLContext:
    pair = certificates.serving(signer, "server", [address], now=datetime.now(UTC), life=timedelta(days=1))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificates.load_chain(context, pair.certificate_pem, pair.key_pem)
    return context


@dataclass
class Manager:
    """The parts of the gateway that agents need. `ca_certificates` is the CA bundle that it publishes."""

    client: Client
    ca_certificates: str
    registry: Registry = field(default_factory=Registry)
    url: str = ""
    paths: list[str] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)  # all header values that were sent

    answer: Answer = Answer.DENIES  # the answer of connected clusters to reviews of other agents' tokens

    async def vouch(self, _cluster: str, _token: str, _ca: str) -> Answer:
        return self.answer

    def __post_init__(self) -> None:
        flags = {"cacerts": self.ca_certificates}
        self.registration = Registration(
            self.client,
            clock=lambda: datetime.now(UTC),
            setting=Settings(flags=flags).get,
            on_cluster_deleted=lambda cluster: self.registry.disconnect(cluster, "the cluster is deleted"),
            connected=self.registry.has,
            vouch=self.vouch,
            displace=lambda cluster: self.registry.disconnect(cluster, "another agent connected"),
        )

    async def handle(self, request: Request) -> Response:
        self._record(request)
        return self.registration.answer(request) or Response(404)

    async def upgrade(self, hijack: Hijack, request: Request) -> bool:
        self._record(request)
        answer = await self.registration.authorize(request.headers)
        if not isinstance(answer, Admitted):
            return False
        self.registry.accept(answer.key, request.headers, hijack)
        return True

    def _record(self, request: Request) -> None:
        self.paths.append(request.path)
        self.headers += request.headers.values()


@asynccontextmanager
async def running_manager(
    tokens: dict[str, Tokens], signer: KeyPair, *, ca_certificates: str = "", address: str = "127.0.0.1"
) -> AsyncIterator[Manager]:
    async with environment() as env:
        await install_kinds(env.outside, list(CRDS))
        for name, each in tokens.items():
            await create_managed_cluster(env.outside, name, each)
        gateway = Manager(env.outside, ca_certificates or signer.certificate_pem.decode())
        front = HttpFront(gateway, clock=lambda: datetime.now(UTC), body_bytes=1 << 20, upgrade=gateway.upgrade)
        running = asyncio.ensure_future(gateway.registration.run())
        await gateway.registration.ready()
        host, port = await front.listen("127.0.0.1", 0, serving_context(signer, address))
        gateway.url = f"https://{host}:{port}"
        try:
            yield gateway
        finally:
            gateway.registry.close()
            await front.stop(grace=0)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
