"""The gateway in front of a real cluster: its certificate, its address, and the HTTPS front that it answers on."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from herder.api.settings import SERVER_CERTIFICATES, SERVER_URL, Settings
from herder.cli.process import wall_clock
from herder.engine.client.client import Client
from herder.engine.client.kubeconfig import Connection

if TYPE_CHECKING:
    from herder.cli.door import Parts
    from herder.engine.apiserver.pki import Pki


class Entrance:
    def __init__(self, directory: Path, listen: tuple[str, int] | None, names: tuple[str, ...]) -> None:
        self._directory = directory
        self._listen = listen
        self._names = names

    @cached_property
    def _pki(self) -> Pki:
        from herder.engine.apiserver.pki import Pki

        assert self._listen is not None
        hosts = dict.fromkeys((*self._names, self._listen[0]))
        return Pki.load_or_create(self._directory / "pki", now=wall_clock(), hosts=tuple(hosts))

    def found(self) -> dict[str, str]:
        """What the settings say of it where nobody says anything else."""
        if self._listen is None:
            return {}
        host, port = self._names[0] if self._names else self._listen[0], self._listen[1]
        certificates = self._pki.authority.certificate_pem.decode()
        return {SERVER_URL: f"https://{host}:{port}", SERVER_CERTIFICATES: certificates}

    def build(self, client: Client, connection: Connection, settings: Settings) -> Parts:
        from herder.cli.door import build
        from herder.gateway.proxy.local import Remote

        return build(client, None, settings, local=Remote(connection))

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
