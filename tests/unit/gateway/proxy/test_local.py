"""The management cluster under the same path as all others: in this process, and as a real API server."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec
import pytest

from herder.engine.apiserver.build import ApiServer, assemble
from herder.engine.wire import Query, Request, Response, User
from herder.gateway.proxy import InProcess, Remote
from tests.support.engines import Engine
from tests.unit.gateway.proxy.proxy_gateway import ADMIN, ALICE, MALLORY, SUPPORT, Gateway

LOCAL = "/k8s/clusters/local"
SELF_REVIEW = f"{LOCAL}/apis/authentication.k8s.io/v1/selfsubjectreviews"
REVIEW = b'{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}'
JSON = {"content-type": "application/json", "accept": "application/json"}


@pytest.fixture(scope="module")
async def embedded() -> AsyncIterator[ApiServer]:
    server = await assemble(None, clock=lambda: datetime.now(UTC), entropy=os.urandom)
    yield server
    await server.stop()


@pytest.fixture(params=["in process", "real"])
async def gateway(request: pytest.FixtureRequest, embedded: ApiServer) -> AsyncIterator[Gateway]:
    local: InProcess | Remote = InProcess(embedded)
    if request.param == "real":
        engine: Engine = request.getfixturevalue("real_engine")
        local = Remote(engine.connection)
    gateway = Gateway({}, local=local)
    yield gateway
    await gateway.proxy.close()


async def send(gateway: Gateway, user: User, request: Request) -> tuple[int, dict[str, object]]:
    response: Response = await gateway.proxy.handle(request, user)
    content = response.content()
    if response.stream is not None:
        content = b"".join([piece async for piece in response.stream])
    return response.status, msgspec.json.decode(content)


async def whoami(gateway: Gateway, user: User, **headers: str) -> tuple[int, str]:
    request_headers = JSON | {name.replace("_", "-"): value for name, value in headers.items()}
    status, body = await send(gateway, user, Request("POST", SELF_REVIEW, headers=request_headers, body=REVIEW))
    return status, body["status"]["userInfo"]["username"] if status == 201 else str(body["message"])  # type: ignore[index]


async def test_a_user_keeps_their_identity(gateway: Gateway) -> None:
    assert await whoami(gateway, ALICE) == (201, "u-alice")


async def test_the_cluster_authorizes_its_users(gateway: Gateway) -> None:
    request = Request("GET", f"{LOCAL}/api/v1/namespaces", Query([("limit", "1")]), JSON)
    status, denial = await send(gateway, MALLORY, request)
    assert (status, denial["reason"]) == (403, "Forbidden")
    assert (await send(gateway, ADMIN, request))[0] == 200


async def test_identity_headers_of_a_client_are_ignored(gateway: Gateway) -> None:
    for name, value in (("authorization", "Bearer x"), ("x-remote-user", "admin"), ("cookie", "R_SESS=x")):
        assert await whoami(gateway, ALICE, **{name.replace("-", "_"): value}) == (201, "u-alice")
    assert (await whoami(gateway, ALICE, impersonate_user="admin"))[0] == 403
    assert (await whoami(gateway, ALICE, connection="Impersonate-User"))[0] == 400


async def test_anonymous_requests_never_use_the_managers_identity(gateway: Gateway) -> None:
    for anonymous in (User(""), User("system:anonymous", groups=("system:unauthenticated",))):
        assert (await whoami(gateway, anonymous))[0] == 401


async def test_impersonation_follows_the_rules_of_the_api_server(gateway: Gateway) -> None:
    """In process the API server decides; before a real one, the manager asks it beforehand."""
    impersonator = ADMIN if isinstance(gateway.local, InProcess) else SUPPORT
    assert await whoami(gateway, impersonator, impersonate_user="u-alice") == (201, "u-alice")
