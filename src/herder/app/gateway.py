"""The gateway in this process: identity, managed clusters, and tunnels."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from herder.api.identity.authn.credentials import credential_of
from herder.api.identity.names import BOOTSTRAP_SECRET
from herder.api.management.clusters import local_cluster
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.management.names import AGENT_PREFIX, SYSTEM_NAMESPACE
from herder.api.references.catalogue import Target
from herder.api.settings import IMAGE_ARCHIVES, SERVER_URL, Settings
from herder.app import node_agent
from herder.app.host.process import wall_clock
from herder.embedded.installer import InstallerImage
from herder.engine.client.client import Client
from herder.engine.control.supervision import supervised
from herder.engine.front.hijack import Hijack
from herder.engine.logs import get_logger
from herder.engine.meta.errors import AlreadyExists, ServiceUnavailable
from herder.engine.wire import Request, Response, User
from herder.gateway.admission.access import Access
from herder.gateway.agents.clusters import Clusters
from herder.gateway.agents.displacement import AgentTokenReview
from herder.gateway.agents.granted_rights import GrantedRights
from herder.gateway.agents.presence import Presence
from herder.gateway.agents.registration import Registration
from herder.gateway.cluster_objects import ClusterObjects
from herder.gateway.ha.peers import Peers
from herder.gateway.ha.replicas import Replicas, SingleReplica
from herder.gateway.ha.shared_secret import PeerConfig
from herder.gateway.identity.logins import PUBLIC_PATHS
from herder.gateway.identity.services import IdentityServices, assemble
from herder.gateway.nodes.routes import NodeRoutes
from herder.gateway.proxy.forward import refusal
from herder.gateway.proxy.local import InProcess, Remote
from herder.gateway.proxy.management_api import RemoteManagementApi
from herder.gateway.proxy.proxy import ClusterProxy
from herder.gateway.proxy.stream_rights import CHECK_SECONDS
from herder.gateway.proxy.upstream.channel import Channel
from herder.gateway.proxy.upstream.connections import Connections
from herder.gateway.proxy.upstream.transport import DownstreamTransport
from herder.gateway.registry.archives import Archives
from herder.gateway.registry.images import Images
from herder.gateway.server import Api, Gateway
from herder.tunnel.registry import Registry

log = get_logger(__name__)


HEALTH = "/healthz"
STARTING = "the manager is starting and does not know its users yet; retry in a moment"
_CREDENTIALS = frozenset({"authorization", "cookie"})


class GatewayHandler:
    """Request handler of the HTTP front: the management API alone until the gateway is ready."""

    receives_body = True

    def __init__(self, api: Api) -> None:
        self._api = api
        self.gateway: Gateway | None = None

    async def handle(self, request: Request) -> Response:
        if self.gateway is None:
            # The API server alone would answer 401, and clients would discard a token that is valid; 403 to logins.
            if credential_of(request.method, request.headers) is not None or request.path in PUBLIC_PATHS:
                return refusal(ServiceUnavailable(STARTING, headers={"retry-after": "1"}))
            return await self._api.handle(request)
        if request.path == HEALTH:
            # The gateway answers this path for nodes, but does not know the state of the API server's store.
            headers = {name: value for name, value in request.headers.items() if name not in _CREDENTIALS}
            return await self._api.handle(replace(request, headers=headers))
        return await self.gateway.handle(request)

    async def upgrade(self, hijack: Hijack, request: Request) -> bool | Response:
        return await self.gateway.upgrade(hijack, request) if self.gateway is not None else False


@dataclass(frozen=True, slots=True)
class Parts:
    """Components of the gateway."""

    client: Client
    gateway: Gateway
    identity: IdentityServices
    registration: Registration
    nodes: NodeRoutes
    presence: Presence
    peers: Peers | None  # None without replicas
    tunnels: Registry
    proxy: ClusterProxy
    clusters: Clusters
    connections: Connections  # used by the controllers with the rights of the cluster agent
    rights: GrantedRights

    async def client_of(self, cluster: str) -> Client:
        target = await self.clusters.target_of(cluster)
        return Client(DownstreamTransport(self.connections, target, target.token), field_manager="herder")

    async def run(self, on_ready: Callable[[], Awaitable[None]]) -> None:
        """Run until canceled; `on_ready` is called when all caches are synced."""
        if await self.identity.users.bootstrap_admin():
            log.info("created the first user, admin", password=f"in Secret {SYSTEM_NAMESPACE}/{BOOTSTRAP_SECRET}")
        stop = self.tunnels.listen(self.presence.changed)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(supervised(self.identity.identity.run, name="gateway-identity"))
                tasks.create_task(supervised(self.registration.run, name="gateway-registration"))
                tasks.create_task(supervised(self.nodes.run, name="gateway-nodes"))
                tasks.create_task(supervised(self.clusters.run, name="gateway-clusters"))
                tasks.create_task(supervised(self.rights.run, name="gateway-rights"))
                for part in (self.identity.identity, self.registration, self.nodes, self.clusters, self.rights):
                    await part.ready()
                await _register_local_cluster(self.client)
                if self.peers is not None:
                    await self.peers.find(tasks)
                await on_ready()
                if self.peers is not None:
                    await self.peers.join(tasks)
                tasks.create_task(supervised(self.presence.run, name="gateway-presence"))
        finally:
            stop()
            await self.proxy.close()
            await self.gateway.close()
            self.rights.close()
            self.connections.close()
            self.tunnels.close()


async def _register_local_cluster(client: Client) -> None:
    """Create the management Cluster of the cluster that the manager runs on."""
    with suppress(AlreadyExists):
        await client.create(MANAGEMENT_CLUSTER.resource, local_cluster())


def build(
    client: Client,
    api: Api | None,
    settings: Settings,
    *,
    local: InProcess | Remote,
    peer_config: PeerConfig | None = None,
    clock: Callable[[], datetime] = wall_clock,
    check_seconds: float = CHECK_SECONDS,
) -> Parts:
    """Create the gateway. `api` is the management API, None if it is behind `local`; `peer_config` is set with
    replicas.

    `check_seconds` is how often the rights of open streams are checked.
    """
    setting = settings.get
    access, clusters, tunnels = Access(client), Clusters(client), Registry()
    identity = assemble(client, clock=clock, entropy=os.urandom, setting=setting, reachable=access.reachable)

    async def through_tunnel(cluster: str, address: str) -> Channel:
        return dial(tunnels, cluster, address)

    connections = Connections(through_tunnel)

    async def client_of(cluster: str) -> Client:
        target = await clusters.target_of(cluster)
        return Client(DownstreamTransport(connections, target, target.token), field_manager="herder")

    rights = GrantedRights(client, clusters, client_of)

    async def check_available(user: User, cluster: str) -> None:
        if rights.are_known(cluster, user):
            return
        target = Target(MANAGEMENT_CLUSTER.group, MANAGEMENT_CLUSTER.plural, "", cluster)
        if await access.may(user, "update", target):
            rights.begin(cluster)
        elif problem := await rights.compare(cluster, user):
            raise ServiceUnavailable(f"cluster {cluster}: only its owners can use it: {problem}; try again in a minute")

    proxy = ClusterProxy(
        target_of=clusters.target_of,
        dial=through_tunnel,
        may_use=access.may_use,
        may_impersonate=access.may_impersonate,
        may_request=access.may_request,
        check_available=check_available,
        local=local,
        server_url=lambda: setting(SERVER_URL),
        check_seconds=check_seconds,
    )

    def cluster_deleted(cluster: str) -> None:
        for key in (cluster, AGENT_PREFIX + cluster):
            tunnels.disconnect(key, "the cluster is deleted")
        proxy.forget(cluster)
        connections.forget(cluster)
        rights.forget(cluster)
        token_review.forget(cluster)

    async def recorded_client(cluster: str, ca: str) -> tuple[Callable[[str], Client], str]:
        target = replace(await clusters.target_of(cluster), ca=ca)
        # No idle connections: agents may present many CAs, and nothing is kept per CA.
        unpooled = Connections(through_tunnel, idle=0)

        def client_with(token: str) -> Client:
            return Client(DownstreamTransport(unpooled, target, token), field_manager="herder")

        return client_with, target.token

    token_review = AgentTokenReview(recorded_client, clock)
    registration = Registration(
        client,
        clock=clock,
        setting=setting,
        on_cluster_deleted=cluster_deleted,
        connected=tunnels.has,
        vouch=token_review,
        displace=lambda cluster: tunnels.disconnect(
            cluster, "the cluster is unresponsive and another agent registered"
        ),
    )
    own = f"herder-gateway-{os.urandom(5).hex()}"
    peers = None
    if peer_config is not None:
        peers = Peers(tunnels, Replicas(client, own, peer_config.address, wall_clock), peer_config.shared)
    nodes = NodeRoutes(
        client, clock=clock, setting=setting, cluster_of=registration.cluster_of, build_agent=node_agent.write
    )
    if isinstance(local, Remote):
        api = RemoteManagementApi(proxy, local, nodes.accounts)
    assert api is not None
    images = Images([InstallerImage()], Archives(lambda: setting(IMAGE_ARCHIVES)))
    gateway = Gateway(
        api,
        registration=registration,
        tunnels=tunnels,
        identity=identity,
        proxy=proxy,
        peers=peers,
        clusters=ClusterObjects(client, access),
        answers=(images.handle, nodes.handle),
    )
    presence = Presence(
        client,
        wall_clock,
        clusters=clusters,
        replicas=peers.replicas if peers is not None else SingleReplica(own),
        peer_of=tunnels.peer_with,
    )
    return Parts(
        client, gateway, identity, registration, nodes, presence, peers, tunnels, proxy, clusters, connections, rights
    )


def dial(tunnels: Registry, cluster: str, address: str) -> Channel:
    """Raises NoSession while the agent is disconnected; the proxy reports since when and asks callers to retry."""
    return tunnels.dial(cluster, "tcp", address)
