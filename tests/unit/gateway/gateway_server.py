"""A complete gateway behind TLS in this process, in front of the embedded server or a real kube-apiserver."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from herder.api.capi.kinds import NAMESPACE
from herder.api.identity.crds import CRDS as IDENTITY_CRDS
from herder.api.identity.roles import CLUSTER_ROLE_BINDING, RBAC
from herder.api.machines.jobs import SERVICE_ACCOUNT
from herder.api.management.crds import CRDS as MANAGEMENT_CRDS
from herder.api.management.kinds import USER
from herder.api.settings import SERVER_CERTIFICATES, SERVER_URL, Settings
from herder.app.gateway import Parts, build
from herder.app.install import install_kinds
from herder.engine.apiserver.build import ApiServer, assemble
from herder.engine.apiserver.inprocess import InProcess as ThisProcess
from herder.engine.apiserver.pki import Pki
from herder.engine.client import kubeconfig
from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.client.kubeconfig import RestConfig
from herder.engine.front.http import HttpFront
from herder.engine.meta.kinds import Object
from herder.engine.wire import User
from herder.gateway.proxy import InProcess, Remote
from tests.support.kube import RealKube

ADMIN = User("manager", groups=("system:masters", "system:authenticated"))
BODY_BYTES = 3 << 20


@dataclass
class GatewayServer:
    engine: str
    client: Client  # of the manager
    parts: Parts
    http: HttpFront
    ca: bytes
    clock_offset: timedelta = timedelta(0)  # added to the real time
    url: str = ""
    opened: list[Client] = field(default_factory=list)

    def client_with_token(self, bearer: str, path: str = "") -> Client:
        """A client outside the manager with this token."""
        connection = RestConfig(self.url + path, ca=self.ca, token=bearer)
        self.opened.append(Client(HttpTransport(connection), field_manager="tester"))
        return self.opened[-1]

    async def create_administrator(self, name: str) -> None:
        """Create a user with every right in the management cluster."""
        user = {"apiVersion": USER.api_version, "kind": USER.kind, "metadata": {"name": name}, "username": name}
        await self.client.create(USER.resource, user)
        binding: Object = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name}}
        binding["roleRef"] = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"}
        binding["subjects"] = [{"apiGroup": RBAC, "kind": "User", "name": name}]
        await self.client.apply(CLUSTER_ROLE_BINDING.resource, binding)

    async def upgrade(self, path: str, bearer: str = "", protocol: str = "websocket") -> Stream:
        """Send a raw request that upgrades the connection to another protocol."""
        lines = ["Connection: Upgrade", f"Upgrade: {protocol}"]
        lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="]
        lines += [f"Origin: {self.url}", "X-Stream-Protocol-Version: v4.channel.k8s.io"]
        return await self.stream(path, bearer, *lines)

    async def stream(self, path: str, bearer: str = "", *headers: str) -> Stream:
        """Send a raw request, and return its connection after the headers of the response."""
        port = int(self.url.rpartition(":")[2])
        trusted = ssl.create_default_context(cadata=self.ca.decode())
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted)
        lines = [f"GET {path} HTTP/1.1", "Host: manager", *headers]
        lines += [f"Authorization: Bearer {bearer}"] if bearer else []
        writer.write("\r\n".join([*lines, "", ""]).encode())
        async with asyncio.timeout(30):
            head = await reader.readuntil(b"\r\n\r\n")
        return Stream(int(head.split()[1]), reader, writer)


@dataclass
class Stream:
    status: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def read_to_end(self) -> bytes:
        """Everything that arrives until the other side closes the connection."""
        try:
            async with asyncio.timeout(30):
                return await self.reader.read()
        except ConnectionError:
            return b""

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await self.writer.wait_closed()


@asynccontextmanager
async def running_gateway(engine: str, directory: Path) -> AsyncIterator[GatewayServer]:
    """`engine` is embedded or real."""
    async with _embedded() if engine == "embedded" else _real(directory) as (client, api, local):
        await install_kinds(client, [*MANAGEMENT_CRDS, *IDENTITY_CRDS])
        pki = Pki.load_or_create(None, now=datetime.now(UTC))
        settings = {SERVER_CERTIFICATES: pki.authority.certificate_pem.decode(), SERVER_URL: ""}

        def clock() -> datetime:
            return datetime.now(UTC) + server.clock_offset

        parts = build(client, api, Settings(detected=settings), local=local, clock=clock, check_seconds=0.2)
        http = HttpFront(parts.gateway, clock=clock, body_bytes=BODY_BYTES, upgrade=parts.gateway.upgrade)
        server = GatewayServer(engine, client, parts, http, pki.authority.certificate_pem)
        ready = asyncio.Event()

        async def on_ready() -> None:
            host, port = await http.listen("127.0.0.1", 0, pki.server_context())
            server.url = settings[SERVER_URL] = f"https://{host}:{port}"
            ready.set()

        running = asyncio.ensure_future(parts.run(on_ready))
        try:
            await asyncio.wait([running, asyncio.ensure_future(ready.wait())], return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
            yield server
        finally:
            for each in server.opened:
                await each.close()
            await http.stop(grace=0)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def _embedded() -> AsyncIterator[tuple[Client, ApiServer, InProcess]]:
    server = await assemble(None, clock=lambda: datetime.now(UTC), entropy=os.urandom)
    try:
        yield Client(ThisProcess(server, ADMIN)), server, InProcess(server)
    finally:
        await server.stop()


@asynccontextmanager
async def _real(directory: Path) -> AsyncIterator[tuple[Client, None, Remote]]:
    """The manager's certificate has every right on the server, so no other request may ever use it."""
    with RealKube(directory) as kube:
        connection = kubeconfig.load(kube.kubeconfig)
        assert connection.client_certificate
        client = Client(HttpTransport(connection))
        try:
            yield client, None, Remote(connection)
        finally:
            await client.close()


async def create_namespace(client: Client, name: str) -> None:
    obj = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await client.apply(NAMESPACE.resource, obj)


async def create_account_token(client: Client, namespace: str, name: str) -> str:
    """Create a service account, and return a token of it."""
    meta = {"name": name, "namespace": namespace}
    await client.apply(SERVICE_ACCOUNT.resource, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    response = await client.create(
        SERVICE_ACCOUNT.resource, request, namespace=namespace, name=name, subresource="token"
    )
    return str(response["status"]["token"])
