"""The gateway in front of a real cluster: its certificate, its address, and the HTTPS front that it answers on."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from herder.api.management.names import SYSTEM_NAMESPACE
from herder.api.settings import SERVER_CERTIFICATES, SERVER_URL, Settings
from herder.cli.process import wall_clock
from herder.engine.client.client import Client
from herder.engine.client.kubeconfig import Connection

if TYPE_CHECKING:
    from herder.cli.door import Parts
    from herder.engine.apiserver.pki import Pki
    from herder.gateway.sharing import Shared

_ANY_ADDRESS = {"0.0.0.0", "::"}  # noqa: S104 - looked for, not listened on


class Entrance:
    def __init__(self, directory: Path, listen: tuple[str, int] | None, names: tuple[str, ...]) -> None:
        self._directory = directory
        self._listen = listen
        self._names = names
        self._own_host = ""  # where other replicas find this one
        self._pki: Pki
        self._shared: Shared

    async def prepare(self, client: Client, connection: Connection) -> None:
        """Certificates that all replicas' clients trust: the first replica's authority is everybody's."""
        from herder.cli.install import make_namespace
        from herder.engine.apiserver.pki import Pki
        from herder.gateway.sharing import shared

        assert self._listen is not None
        self._own_host = self._listen[0] if self._listen[0] not in _ANY_ADDRESS else _address_towards(connection.server)
        hosts = tuple(dict.fromkeys((*self._names, self._listen[0], self._own_host)))
        directory = self._directory / "pki"
        own = Pki.load_or_create(directory, now=wall_clock(), hosts=hosts)
        await make_namespace(client, SYSTEM_NAMESPACE)
        self._shared = await shared(client, own.authority, os.urandom)
        self._pki = Pki.load_or_create(directory, now=wall_clock(), hosts=hosts, authority=self._shared.authority)

    def found(self) -> dict[str, str]:
        """What the settings say of it where nobody says anything else."""
        if self._listen is None:
            return {}
        host = self._names[0] if self._names else self._listen[0]
        certificates = self._pki.authority.certificate_pem.decode()
        return {SERVER_URL: f"https://{_joined(host, self._listen[1])}", SERVER_CERTIFICATES: certificates}

    def build(self, client: Client, connection: Connection, settings: Settings) -> Parts:
        from herder.cli.door import build
        from herder.gateway.proxy.local import Remote
        from herder.gateway.sharing import Place

        assert self._listen is not None
        place = Place(_joined(self._own_host, self._listen[1]), self._shared)
        return build(client, None, settings, local=Remote(connection), place=place)

    async def open(self, parts: Parts) -> None:
        """Until cancelled; nobody is let in before it is known who may."""
        from herder.engine.apiserver.limits import BODY_BYTES
        from herder.engine.front.http import HttpFront

        assert self._listen is not None
        listen, context = self._listen, self._pki.server_context()
        front = HttpFront(parts.gateway, clock=wall_clock, body_bytes=BODY_BYTES, upgrade=parts.gateway.upgrade)

        async def opened() -> None:
            await front.listen(*listen, context)

        try:
            await parts.run(opened)
        finally:
            await front.stop()


def _address_towards(server: str) -> str:
    """The address of ours that a server sees, which is the pod's in a pod. Nothing is sent for it."""
    parts = urlsplit(server)
    family, kind, protocol, _, address = socket.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_DGRAM)[
        0
    ]
    with socket.socket(family, kind, protocol) as asking:
        asking.connect(address)
        return str(asking.getsockname()[0])


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
