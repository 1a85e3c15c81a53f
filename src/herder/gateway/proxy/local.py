"""The management cluster itself, at `/k8s/clusters/local`: in this process, or a real API server elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol
from urllib.parse import unquote, urlsplit

from herder.api.management.names import LOCAL
from herder.engine.client.credentials import credentials_for
from herder.engine.client.kubeconfig import Connection
from herder.engine.client.tls import tls_context
from herder.engine.client.wire import Request, Response, User
from herder.gateway.proxy.targets import Asked, Target

_LEFT_OUT = ("authorization", "cookie", "x-remote-")


class Handler(Protocol):
    async def handle(self, request: Request) -> Response: ...


class InProcess:
    """The embedded API server: told who asks, it applies its own rules, also to whom that user may act as."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def handle(self, request: Request, asked: Asked, user: User) -> Response:
        headers = {name: value for name, value in request.headers.items() if not name.startswith(_LEFT_OUT)}
        inside = replace(
            request, path=unquote(asked.path), headers=headers, user=user, target=asked.target, client_certificate=None
        )
        return await self._handler.handle(inside)


class Remote:
    """A real API server: the manager's own credentials, which may impersonate, and always the user's name with them."""

    def __init__(self, connection: Connection) -> None:
        parts = urlsplit(connection.server)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        self.target = Target(
            LOCAL,
            f"{host}:{parts.port or 443}",
            (connection.ca or b"").decode(),
            prefix=parts.path.rstrip("/"),
            context=tls_context(connection),
            certified_name=connection.tls_server_name,
        )
        nobody = replace(connection, client_certificate=None, client_key=None)
        self.for_strangers = replace(self.target, context=tls_context(nobody))
        """The same for requests that are not the manager's: a certificate of ours would make them so."""
        self._credentials = credentials_for(connection)

    async def authorization(self, target: Target, user: User) -> str:
        return await self._credentials.header()

    def refused(self, target: Target, user: User) -> None:
        self._credentials.refused()

    def forget(self, cluster: str, user_name: str = "") -> None:
        """The manager's credentials are nobody else's."""
