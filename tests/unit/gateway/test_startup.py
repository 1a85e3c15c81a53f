"""Requests that arrive after the listener is open and before the gateway is ready."""

from __future__ import annotations

import json

import pytest

from herder.app.gateway import GatewayHandler
from herder.engine.wire import Query, Request, Response

TOKEN = {"authorization": "Bearer token-abcde:bcdfghjklm"}
OTHERS = {
    "anonymous": {},
    "service account": {"authorization": "Bearer eyJhbGciOi.eyJpc3MiOi.c2lnbmF0dXJl"},
}


class ApiServer:
    """An API server that knows no tokens of the gateway."""

    async def handle(self, _request: Request) -> Response:
        return Response(401, {}, b"")


async def respond(headers: dict[str, str], path: str = "/api/v1/namespaces") -> Response:
    return await GatewayHandler(ApiServer()).handle(Request("GET", path, Query(), headers))


async def test_a_token_that_cannot_be_looked_up_yet_gets_503() -> None:
    response = await respond(TOKEN)
    assert (response.status, response.headers["retry-after"]) == (503, "1")
    assert json.loads(response.content())["reason"] == "ServiceUnavailable"


@pytest.mark.parametrize("path", ["/v1-public/login", "/v3-public/authProviders"])
async def test_logins_get_503(path: str) -> None:
    assert (await respond({}, path)).status == 503


@pytest.mark.parametrize("client", OTHERS)
async def test_other_credentials_are_left_to_the_api_server(client: str) -> None:
    assert (await respond(OTHERS[client])).status == 401
