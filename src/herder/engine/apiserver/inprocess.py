"""In-process transport: sends requests straight to the API server, without sockets, TLS and HTTP."""

from __future__ import annotations

from dataclasses import replace

from herder.engine.apiserver.server import ApiServer
from herder.engine.wire import Request, Response, User


class InProcess:
    """Transport of an in-process client that acts as one user. Authentication and flow control are skipped."""

    def __init__(self, server: ApiServer, user: User, *, user_agent: str = "herder") -> None:
        self._server = server
        self._user = user
        self._user_agent = user_agent

    async def send(self, request: Request) -> Response:
        headers = dict(request.headers)
        headers.setdefault("user-agent", self._user_agent)
        return await self._server.handle(replace(request, headers=headers, user=self._user))

    async def close(self) -> None:
        """Do nothing: the server outlives its clients."""
