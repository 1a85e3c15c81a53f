"""Requests for ext.cattle.io/v1, each handed to who answers for its kind. Everybody sees their own and no more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

import msgspec

from herder.engine.client.wire import Request, Response, User
from herder.engine.meta.errors import BadRequest, MethodNotAllowed, NotFound
from herder.engine.meta.kinds import Object
from herder.gateway.identity.answers import answer, body_of
from herder.gateway.identity.ext import discovery

Creates = Callable[[Object, User], Awaitable[Object]]


class Stored(Protocol):
    """A kind whose objects stay."""

    kind: str

    async def get(self, name: str, user: User) -> Object: ...

    async def list(self, user: User) -> list[Object]: ...

    async def create(self, wanted: Object, user: User) -> Object: ...

    async def delete(self, name: str, user: User) -> None: ...


class ExtApi:
    def __init__(self, stored: dict[str, Stored], asked: dict[str, Creates]) -> None:
        """Both by plural; `asked` are kinds that are an answer rather than an object."""
        self._stored = stored
        self._asked = asked

    def groups(self, response: Response) -> Response:
        """The API server's answer to which groups there are, with ours."""
        if response.status != 200 or response.stream is not None or "content-encoding" in response.headers:
            return response
        try:
            answer = msgspec.json.decode(response.content())
        except msgspec.DecodeError:
            return response  # in another format than JSON
        return replace(response, body=msgspec.json.encode(discovery.with_group(answer)))

    async def handle(self, request: Request, user: User) -> Response | None:
        """None for a path that is not of this group. Raises a StatusError for what is refused."""
        if request.path.rstrip("/") == discovery.GROUP_PATH:
            return answer(discovery.API_GROUP)
        if request.path.rstrip("/") == discovery.PATH:
            return answer(discovery.RESOURCES)
        if not request.path.startswith(f"{discovery.PATH}/"):
            return None
        if request.query.get("dryRun"):
            raise BadRequest(f"dryRun: not supported by kinds of {discovery.GROUP}; leave it out")
        plural, _, name = request.path.removeprefix(f"{discovery.PATH}/").partition("/")
        if plural in self._asked and not name:
            _only(request, "POST")
            return answer(await self._asked[plural](await body_of(request), user), 201)
        if plural in self._stored and "/" not in name:
            return await self._object(self._stored[plural], request, name, user)
        raise NotFound("the server could not find the requested resource")

    async def _object(self, stored: Stored, request: Request, name: str, user: User) -> Response:
        if request.flows:
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


def _only(request: Request, method: str) -> None:
    if request.method != method:
        raise MethodNotAllowed(f"{request.path}: only {method} is supported")


def _list(kind: str, items: list[Object]) -> Object:
    return {"kind": f"{kind}List", "apiVersion": discovery.API_VERSION, "metadata": {}, "items": items}
