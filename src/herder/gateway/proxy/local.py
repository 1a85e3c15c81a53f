"""The management cluster at `/k8s/clusters/local`: in this process, or a remote API server."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol
from urllib.parse import unquote, urlsplit

from herder.api.management.names import LOCAL
from herder.engine.client.credentials import credentials_for
from herder.engine.client.kubeconfig import RestConfig
from herder.engine.client.tls import tls_context
from herder.engine.wire import Request, Response, User
from herder.gateway.proxy.targets import ClusterPath, Target

_DROPPED_HEADERS = ("authorization", "cookie", "x-remote-")


class Handler(Protocol):
    async def handle(self, request: Request) -> Response: ...


class InProcess:
    """The embedded API server; it authorizes the user, including impersonation."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def handle(self, request: Request, asked: ClusterPath, user: User) -> Response:
        headers = {name: value for name, value in request.headers.items() if not name.startswith(_DROPPED_HEADERS)}
        inside = replace(
            request, path=unquote(asked.path), headers=headers, user=user, target=asked.target, client_certificate=None
        )
        return await self._handler.handle(inside)


class Remote:
    """A real API server: the manager's credentials, always with impersonation of the user."""

    def __init__(self, connection: RestConfig) -> None:
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
        anonymous = replace(connection, client_certificate=None, client_key=None)
        self.without_client_certificate = replace(self.target, context=tls_context(anonymous))
        """The same target without the manager's client certificate, for requests with credentials of their own."""
        self._credentials = credentials_for(connection)

    async def authorization(self, target: Target, user: User) -> str:
        return await self._credentials.header()

    def refused(self, target: Target, user: User) -> None:
        self._credentials.invalidate()

    def forget(self, cluster: str, user_name: str = "") -> None:
        """The manager's credentials are not cached per user."""
