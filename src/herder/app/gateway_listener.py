"""HTTPS listener of the gateway on a real cluster: certificate, address and server."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from herder.api.management.names import SYSTEM_NAMESPACE
from herder.api.settings import SERVER_CERTIFICATES, SERVER_URL, Settings
from herder.app.host.process import wall_clock
from herder.engine.client.client import Client
from herder.engine.client.kubeconfig import RestConfig

if TYPE_CHECKING:
    from herder.app.gateway import Parts
    from herder.engine.apiserver.pki import Pki
    from herder.engine.control.metrics import Metrics
    from herder.gateway.ha.shared_secret import GatewaySecret

_ANY_ADDRESS = {"0.0.0.0", "::"}  # noqa: S104 - looked for, not listened on


class GatewayListener:
    """Listener of one gateway replica."""

    def __init__(self, directory: Path, listen: tuple[str, int] | None, names: tuple[str, ...]) -> None:
        self._directory = directory
        self._listen = listen
        self._names = names
        self._own_host = ""  # address for other replicas
        self._pki: Pki
        self._shared: GatewaySecret

    async def prepare(self, client: Client, connection: RestConfig) -> None:
        """Load or create the certificate; all replicas use the first replica's CA."""
        from herder.app.install import ensure_namespace
        from herder.engine.apiserver.pki import Pki
        from herder.gateway.ha.shared_secret import shared

        assert self._listen is not None
        self._own_host = self._listen[0] if self._listen[0] not in _ANY_ADDRESS else _address_towards(connection.server)
        hosts = tuple(dict.fromkeys((*self._names, self._listen[0], self._own_host)))
        directory = self._directory / "pki"
        own = Pki.load_or_create(directory, now=wall_clock(), hosts=hosts)
        await ensure_namespace(client, SYSTEM_NAMESPACE)
        self._shared = await shared(client, own.authority, os.urandom)
        self._pki = Pki.load_or_create(directory, now=wall_clock(), hosts=hosts, authority=self._shared.authority)

    def found(self) -> dict[str, str]:
        """Defaults of the settings server-url and cacerts."""
        if self._listen is None:
            return {}
        host = self._names[0] if self._names else self._listen[0]
        certificates = self._pki.authority.certificate_pem.decode()
        return {SERVER_URL: f"https://{_host_port(host, self._listen[1])}", SERVER_CERTIFICATES: certificates}

    def build(self, client: Client, connection: RestConfig, settings: Settings) -> Parts:
        from herder.app.gateway import build
        from herder.gateway.ha.shared_secret import PeerConfig
        from herder.gateway.proxy.local import Remote

        assert self._listen is not None
        peer_config = PeerConfig(_host_port(self._own_host, self._listen[1]), self._shared)
        return build(client, None, settings, local=Remote(connection), peer_config=peer_config)

    async def open(self, parts: Parts, metrics: Metrics) -> None:
        """Run until canceled; listens once authentication is ready."""
        from herder.app.metrics.gateway import add_http_metrics, add_node_agent_metric, add_tunnel_metrics
        from herder.engine.apiserver.request.limits import BODY_BYTES
        from herder.engine.front.http import HttpFront

        assert self._listen is not None
        listen, context = self._listen, self._pki.server_context()
        front = HttpFront(parts.gateway, clock=wall_clock, body_bytes=BODY_BYTES, upgrade=parts.gateway.upgrade)

        add_http_metrics(metrics, front)
        add_tunnel_metrics(metrics, parts.tunnels)
        add_node_agent_metric(metrics, parts.nodes.accounts.connected)

        async def on_ready() -> None:
            await front.listen(*listen, context)

        try:
            await parts.run(on_ready)
        finally:
            await front.stop()


def _address_towards(server: str) -> str:
    """The local address used to reach a server, which is the pod's in a pod. Sends nothing."""
    parts = urlsplit(server)
    family, kind, protocol, _, address = socket.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_DGRAM)[
        0
    ]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def _host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
