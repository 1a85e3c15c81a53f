"""The gateway as a part of this process: who asks, managed clusters, and the tunnels that lead there."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from herder.agent.build import build as build_node_agent
from herder.api.identity.names import BOOTSTRAP_SECRET
from herder.api.management.clusters import local_cluster
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.management.names import AGENT_PREFIX, SYSTEM_NAMESPACE
from herder.api.settings import IMAGE_ARCHIVES, SERVER_URL, Settings
from herder.cli.process import wall_clock
from herder.embedded.installer import InstallerImage
from herder.engine.client.client import Client
from herder.engine.client.wire import Request, Response
from herder.engine.control.supervision import supervised
from herder.engine.front.hijack import Hijack
from herder.engine.logs import get_logger
from herder.engine.meta.errors import AlreadyExists
from herder.gateway.access import Access
from herder.gateway.agent_identity import Vouching
from herder.gateway.archives import Archives
from herder.gateway.clusters import Clusters
from herder.gateway.identity.parts import IdentityParts, assemble
from herder.gateway.images import Images
from herder.gateway.nodes.nodes import Nodes
from herder.gateway.peers import Peers
from herder.gateway.presence import Presence
from herder.gateway.proxy.behind import Behind
from herder.gateway.proxy.channels import Channel
from herder.gateway.proxy.connections import Connections
from herder.gateway.proxy.local import InProcess, Remote
from herder.gateway.proxy.members import CHECK_SECONDS
from herder.gateway.proxy.proxy import ClusterProxy
from herder.gateway.proxy.transport import DownstreamTransport
from herder.gateway.registration import Registration
from herder.gateway.replicas import Alone, Replicas
from herder.gateway.server import Api, Gateway
from herder.gateway.sharing import Place
from herder.tunnel.registry import Registry

log = get_logger(__name__)


HEALTH = "/healthz"
_CREDENTIALS = frozenset({"authorization", "cookie"})


class Door:
    """What the HTTP front asks: the management API alone until the gateway stands before it."""

    receives_body = True

    def __init__(self, api: Api) -> None:
        self._api = api
        self.gateway: Gateway | None = None

    async def handle(self, request: Request) -> Response:
        if self.gateway is None:
            return await self._api.handle(request)
        if request.path == HEALTH:
            # The gateway answers this path for nodes, and cannot know whether the API server's store works.
            kept = {name: value for name, value in request.headers.items() if name not in _CREDENTIALS}
            return await self._api.handle(replace(request, headers=kept))
        return await self.gateway.handle(request)

    async def upgrade(self, hijack: Hijack, request: Request) -> bool:
        return await self.gateway.upgrade(hijack, request) if self.gateway is not None else False


@dataclass(frozen=True, slots=True)
class Parts:
    client: Client
    gateway: Gateway
    identity: IdentityParts
    registration: Registration
    nodes: Nodes
    presence: Presence
    peers: Peers | None  # where the gateway has several replicas
    tunnels: Registry
    proxy: ClusterProxy
    clusters: Clusters
    connections: Connections  # of the controllers, which act with the rights of a cluster's agent

    async def client_of(self, cluster: str) -> Client:
        target = await self.clusters.target_of(cluster)
        return Client(DownstreamTransport(self.connections, target, target.token), field_manager="herder")

    async def run(self, opened: Callable[[], Awaitable[None]]) -> None:
        """Until cancelled; `opened` is called when all that decides over requests is known."""
        if await self.identity.users.bootstrap_admin():
            log.info("created the first user, admin", password=f"in Secret {SYSTEM_NAMESPACE}/{BOOTSTRAP_SECRET}")
        stop = self.tunnels.listen(self.presence.changed)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(supervised(self.identity.identity.run, name="gateway-identity"))
                tasks.create_task(supervised(self.registration.run, name="gateway-registration"))
                tasks.create_task(supervised(self.nodes.run, name="gateway-nodes"))
                tasks.create_task(supervised(self.clusters.run, name="gateway-clusters"))
                for part in (self.identity.identity, self.registration, self.nodes, self.clusters):
                    await part.ready()
                await _show_own_cluster(self.client)
                if self.peers is not None:
                    await self.peers.find(tasks)
                await opened()
                if self.peers is not None:
                    await self.peers.join(tasks)
                tasks.create_task(supervised(self.presence.run, name="gateway-presence"))
        finally:
            stop()
            await self.proxy.close()
            await self.gateway.close()
            self.connections.close()
            self.tunnels.close()


async def _show_own_cluster(client: Client) -> None:
    """The cluster that the manager runs on is managed too."""
    with suppress(AlreadyExists):
        await client.create(MANAGEMENT_CLUSTER.resource, local_cluster())


def build(
    client: Client,
    api: Api | None,
    settings: Settings,
    *,
    local: InProcess | Remote,
    place: Place | None = None,
    clock: Callable[[], datetime] = wall_clock,
    check_seconds: float = CHECK_SECONDS,
) -> Parts:
    """`api` is the management API, None where it is behind `local`; `place` is that of one gateway among several.
    `check_seconds`: how often it is asked whether users of watches and shells still have the right to them."""
    setting = settings.get
    access, clusters, tunnels = Access(client), Clusters(client), Registry()
    identity = assemble(client, clock=clock, entropy=os.urandom, setting=setting, reachable=access.reachable)

    async def through_tunnel(cluster: str, address: str) -> Channel:
        return dial(tunnels, cluster, address)

    connections = Connections(through_tunnel)
    proxy = ClusterProxy(
        target_of=clusters.target_of,
        dial=through_tunnel,
        may_use=access.may_use,
        may_impersonate=access.may_impersonate,
        may_request=access.may_request,
        local=local,
        server_url=lambda: setting(SERVER_URL),
        check_seconds=check_seconds,
    )

    def gone(cluster: str) -> None:
        for key in (cluster, AGENT_PREFIX + cluster):
            tunnels.disconnect(key, "the cluster is deleted")
        proxy.forget(cluster)
        connections.forget(cluster)
        vouching.forget(cluster)

    async def recorded_client(cluster: str) -> tuple[Client, str]:
        target = await clusters.target_of(cluster)
        return Client(DownstreamTransport(connections, target, target.token), field_manager="herder"), target.token

    vouching = Vouching(recorded_client, clock)
    registration = Registration(
        client,
        clock=clock,
        setting=setting,
        cluster_gone=gone,
        connected=tunnels.has,
        vouch=vouching,
        displace=lambda cluster: tunnels.disconnect(cluster, "the cluster does not answer, and another agent came"),
    )
    if isinstance(local, Remote):
        api = Behind(proxy, local)
    assert api is not None
    own = f"herder-gateway-{os.urandom(5).hex()}"
    peers = None
    if place is not None:
        peers = Peers(tunnels, Replicas(client, own, place.address, wall_clock), place.shared)
    nodes = Nodes(
        client, clock=clock, setting=setting, cluster_of=registration.cluster_of, build_agent=build_node_agent
    )
    images = Images([InstallerImage()], Archives(lambda: setting(IMAGE_ARCHIVES)))
    gateway = Gateway(
        api,
        registration=registration,
        tunnels=tunnels,
        identity=identity,
        proxy=proxy,
        peers=peers,
        answers=(images.handle, nodes.handle),
    )
    presence = Presence(
        client,
        wall_clock,
        clusters=clusters,
        replicas=peers.replicas if peers is not None else Alone(own),
        peer_with=tunnels.peer_with,
    )
    return Parts(client, gateway, identity, registration, nodes, presence, peers, tunnels, proxy, clusters, connections)


def dial(tunnels: Registry, cluster: str, address: str) -> Channel:
    """Raises NoSession while the agent is away: the proxy knows since when, and tells callers to try again."""
    return tunnels.dial(cluster, "tcp", address)
