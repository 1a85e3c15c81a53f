"""The server that initializes a cluster: the API, its manifests, its Node, and the cluster agent."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path

import yaml

from herder.embedded.cluster_agent import ClusterAgent, wanted
from herder.embedded.manifests import Manifests
from herder.embedded.node import NODES
from herder.embedded.node_lifecycle import LostNodes
from herder.embedded.server import MASTER, NODE_USER, _let_nodes_join
from herder.engine.apiserver.build import ApiServer, assemble
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.apiserver.pki import Pki
from herder.engine.apiserver.request.limits import BODY_BYTES
from herder.engine.client.client import Client
from herder.engine.front.http import HttpFront
from herder.engine.meta.errors import StatusError
from herder.engine.wire import Request, Response, User

from .components import running_components
from .config import CONFIG, SUPERVISOR_PORT, K3sConfig
from .node import running_node

REMOVE, REMOVED = "etcd.k3s.cattle.io/remove", "etcd.k3s.cattle.io/removed-node-name"
BOOTSTRAP = "/v1-k3s/server-bootstrap"  # the path that joining servers fetch
SHARED = ("server-ca.crt", "client-kube-apiserver.crt", "client-kube-apiserver.key")
MANIFEST_INTERVAL = 0.5  # seconds; k3s does it every 15


async def serve(config: K3sConfig, ready: Callable[[], None]) -> None:
    configuration = config.configuration
    if (configuration.data_dir / "server" / "db" / "etcd" / "tombstone").exists():
        raise SystemExit("tombstone file has been detected but --server is empty")
    pki = _certificates(config)
    database = configuration.data_dir / "server" / "db" / "stand-in"
    server = await assemble(database, clock=_clock, entropy=os.urandom, pki=pki)
    server.authenticator.token_authenticators.append(_tokens(config))
    front = HttpFront(_Supervisor(server, config), clock=_clock, body_bytes=BODY_BYTES)
    try:
        await front.listen("0.0.0.0", SUPERVISOR_PORT, pki.server_context())
        kubeconfig = _write_kubeconfig(pki)
        client = Client(InProcess(server, MASTER))
        await _let_nodes_join(client)
        async with running_components(config), running_node(client, config, server=True), asyncio.TaskGroup() as tasks:
            agent = ClusterAgent(kubeconfig, configuration.data_dir / "server" / "agent-token")
            tasks.create_task(LostNodes(client).run())
            tasks.create_task(_deploy(client, configuration.data_dir / "server", agent))
            tasks.create_task(_remove_members(client))
            tasks.create_task(agent.run())
            ready()
    finally:
        await front.stop(grace=0)
        await server.stop()


def _certificates(config: K3sConfig) -> Pki:
    """Write certificates to the paths of k3s."""
    configuration = config.configuration
    pki = Pki.load_or_create(config.tls, now=_clock(), hosts=(*configuration.addresses, *configuration.names))
    own = pki.client_certificate("kube-apiserver", ("system:masters",), now=_clock())
    contents = (pki.authority.certificate_pem, own.certificate_pem, own.key_pem)
    for name, content in zip(SHARED, contents, strict=True):
        (config.tls / name).write_bytes(content)
        (config.tls / name).chmod(0o600)
    return pki


class _Supervisor:
    """Serves, before the API and on the same port, what machines request before they can authenticate.

    The API itself rejects anonymous requests, even for readiness.
    """

    def __init__(self, server: ApiServer, config: K3sConfig) -> None:
        self._server, self._config = server, config

    async def handle(self, request: Request) -> Response:
        if request.path == "/cacerts":
            return Response(200, {}, (self._config.tls / "server-ca.crt").read_bytes())
        if request.path == BOOTSTRAP:
            presented = request.headers.get("authorization", "")
            if not hmac.compare_digest(presented, f"Bearer {self._config.configuration.token}"):
                return Response(401, {}, b"not authorized")
            shared = {name: (self._config.tls / name).read_text() for name in SHARED}
            return Response(200, {}, json.dumps(shared).encode())
        if request.client_certificate is None and "authorization" not in request.headers:
            return Response(401, {}, b"anonymous requests are not allowed")
        return await self._server.handle(request)


def _tokens(config: K3sConfig):  # type: ignore[no-untyped-def]
    """Servers have all rights, agents may register their Nodes."""
    known: dict[str, User] = {config.configuration.token: MASTER, config.configuration.agent_token: NODE_USER}

    async def authenticate(presented: str) -> User | None:
        return next((user for token, user in known.items() if token and hmac.compare_digest(presented, token)), None)

    return authenticate


def _write_kubeconfig(pki: Pki) -> Path:
    path = CONFIG / "k3s.yaml"
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(pki.admin_kubeconfig(f"https://127.0.0.1:{SUPERVISOR_PORT}")))
    return path


async def _deploy(client: Client, directory: Path, agent: ClusterAgent) -> None:
    manifests = Manifests(client, directory / "manifests", directory / "manifests.json")
    while True:
        try:
            agent.want(wanted(await manifests.apply()))
        except (StatusError, OSError) as problem:
            print(f"manifests cannot be applied: {problem}", flush=True)
        await asyncio.sleep(MANIFEST_INTERVAL)


async def _remove_members(client: Client) -> None:
    """Confirm the removal of etcd members by annotating their Nodes."""
    while True:
        try:
            events = client.watch(NODES, initial_events=True)
            async with aclosing(events):
                async for event in events:
                    annotations = event.object["metadata"].get("annotations") or {}
                    if event.type != "DELETED" and annotations.get(REMOVE) == "true" and REMOVED not in annotations:
                        name = event.object["metadata"]["name"]
                        await client.patch(NODES, name, {"metadata": {"annotations": {REMOVED: name}}})
        except StatusError:
            await asyncio.sleep(1)


def _clock() -> datetime:
    return datetime.now(UTC)
