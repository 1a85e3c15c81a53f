"""Clients inside the process: the same road, without sockets, TLS and HTTP."""

from __future__ import annotations

from dataclasses import replace

from herder.engine.apiserver.pipeline import ApiServer
from herder.engine.client.wire import Request, Response, User


class InProcess:
    """A client's Transport straight into a server, as one user. Everything but authentication happens as over HTTP."""

    def __init__(self, server: ApiServer, user: User, *, user_agent: str = "herder") -> None:
        self._server = server
        self._user = user
        self._user_agent = user_agent

    async def send(self, request: Request) -> Response:
        headers = dict(request.headers)
        headers.setdefault("user-agent", self._user_agent)
        return await self._server.handle(replace(request, headers=headers, user=self._user))

    async def close(self) -> None:
        """Nothing to close: the server outlives its callers."""
