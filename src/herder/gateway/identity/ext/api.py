"""API of ext.cattle.io/v1; users see their own objects only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

import msgspec

from herder.engine.meta.errors import BadRequest, MethodNotAllowed, NotFound
from herder.engine.meta.kinds import Object
from herder.engine.wire import Request, Response, User
from herder.gateway.identity.bodies import answer, body_of
from herder.gateway.identity.ext import discovery

Creates = Callable[[Object, User], Awaitable[Object]]


class Stored(Protocol):
    """A kind whose objects are stored."""

    kind: str

    async def get(self, name: str, user: User) -> Object: ...

    async def list(self, user: User) -> list[Object]: ...

    async def create(self, wanted: Object, user: User) -> Object: ...

    async def delete(self, name: str, user: User) -> None: ...


class ExtApi:
    """Request router of the API group."""

    def __init__(self, stored: dict[str, Stored], ephemeral: dict[str, Creates]) -> None:
        """Handlers by plural; `ephemeral` kinds only support create and are not stored."""
        self._stored = stored
        self._ephemeral = ephemeral

    def groups(self, response: Response) -> Response:
        """Add our group to the API server's list of groups."""
        if response.status != 200 or response.stream is not None or "content-encoding" in response.headers:
            return response
        try:
            answer = msgspec.json.decode(response.content())
        except msgspec.DecodeError:
            return response  # not JSON
        return replace(response, body=msgspec.json.encode(discovery.with_group(answer)))

    async def handle(self, request: Request, user: User) -> Response | None:
        """Return None for a path outside this group. Raises StatusError."""
        if request.path.rstrip("/") == discovery.GROUP_PATH:
            return answer(discovery.API_GROUP)
        if request.path.rstrip("/") == discovery.PATH:
            return answer(discovery.RESOURCES)
        if not request.path.startswith(f"{discovery.PATH}/"):
            return None
        if request.query.get("dryRun"):
            raise BadRequest(f"dryRun: not supported by kinds of {discovery.GROUP}; leave it out")
        plural, _, name = request.path.removeprefix(f"{discovery.PATH}/").partition("/")
        if plural in self._ephemeral and not name:
            _require_method(request, "POST")
            return answer(await self._ephemeral[plural](await body_of(request), user), 201)
        if plural in self._stored and "/" not in name:
            return await self._object(self._stored[plural], request, name, user)
        raise NotFound("the server could not find the requested resource")

    async def _object(self, stored: Stored, request: Request, name: str, user: User) -> Response:
        if request.is_streaming:
            raise MethodNotAllowed(f"{stored.kind}: cannot be watched, list them instead")
        match request.method, bool(name):
            case "GET", True:
                return answer(await stored.get(name, user))
            case "GET", False:
                return answer(_list(stored.kind, await stored.list(user)))
            case "POST", False:
                return answer(await stored.create(await body_of(request), user), 201)
            case "DELETE", True:
                await stored.delete(name, user)
                return answer({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})
            case _:
                raise MethodNotAllowed(f"{stored.kind}: {request.method} is not supported here")


def _require_method(request: Request, method: str) -> None:
    if request.method != method:
        raise MethodNotAllowed(f"{request.path}: only {method} is supported")


def _list(kind: str, items: list[Object]) -> Object:
    return {"kind": f"{kind}List", "apiVersion": discovery.API_VERSION, "metadata": {}, "items": items}
