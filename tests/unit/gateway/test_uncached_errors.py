"""No error of the gateway may be cached: a retry with other credentials, or a moment later, must reach the gateway."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from herder.api.identity.authn.tokens import NewToken
from tests.unit.gateway.gateway_server import GatewayServer, running_gateway

UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)
UNKNOWN_TOKEN = "Authorization: Bearer token-nobody:secret"
HOUR = 3_600_000
KUBERNETES = "no-cache, private"  # kube-apiserver's own header


@dataclass(frozen=True)
class Case:
    request: str  # method and path
    status: int
    headers: tuple[str, ...] = ()
    body: str = ""


CASES = (
    Case("POST /v1-public/login", 401, body='{"type": "localProvider", "username": "nobody", "password": "wrong"}'),
    Case("POST /v1-public/login", 400, body="{}"),
    Case("GET /v1-public/login", 405),
    Case("POST /v1/logout", 401),
    Case("POST /v3/tokens?action=logout", 401, (UNKNOWN_TOKEN,)),
    Case("POST /v3/clusters/c-m-none?action=generateKubeconfig", 401, (UNKNOWN_TOKEN,)),
    Case("GET /apis/ext.cattle.io/v1/tokens", 401, (UNKNOWN_TOKEN,)),
    Case("GET /api/v1/namespaces", 401, (UNKNOWN_TOKEN,)),
    Case("GET /k8s/clusters/c-m-none/api", 401),
    Case("GET /k8s/clusters/c-m-none/api", 401, (UNKNOWN_TOKEN,)),
    Case("GET /k8s/clusters/c-m-none/api", 401, (UNKNOWN_TOKEN, *UPGRADE)),
    Case("GET /v3/connect", 401),
    Case("GET /v3/connect", 401, UPGRADE),
    Case("GET /v3/connect/register", 401, UPGRADE),
    Case("GET /v3/connect/agent", 401),
    Case("GET /v3/connect/cluster-info", 401),
    Case("GET /v3/connect/config-yaml", 401),
    Case("GET /v3/import/unknown_c-m-none.yaml", 400),
    Case("GET /assets/unknown", 404),
    Case("GET /v2/herder/unknown/manifests/v1", 404),
    Case("PUT /v2/herder/unknown/manifests/v1", 405),
    Case("GET /api/v1/namespaces HTTP/9.9", 400),
)


@pytest.fixture(scope="module", params=["embedded", "real"])
async def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[GatewayServer]:
    async with running_gateway(request.param, tmp_path_factory.mktemp("gateway")) as server:
        yield server


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.request} {len(case.headers)} {case.status}")
async def test_errors_are_not_cached(gateway: GatewayServer, case: Case) -> None:
    status, headers = await _send(gateway, case)
    assert (status, headers.get("cache-control")) == (case.status, "no-store")


async def test_errors_of_the_api_server_keep_its_own_header(gateway: GatewayServer) -> None:
    await gateway.create_administrator("u-person")
    issued = await gateway.parts.identity.issuer.issue(NewToken("u-person", "u-person", kind="session", ttl_ms=HOUR))
    case = Case("GET /api/v1/namespaces/none", 404, (f"Authorization: Bearer {issued.bearer}",))
    status, headers = await _send(gateway, case)
    assert (status, headers["cache-control"]) == (404, KUBERNETES)


async def _send(gateway: GatewayServer, case: Case) -> tuple[int, dict[str, str]]:
    """Send the request as it is written, and return status and headers of the response."""
    trusted = ssl.create_default_context(cadata=gateway.ca.decode())
    reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]), ssl=trusted)
    start = case.request if case.request.count(" ") > 1 else f"{case.request} HTTP/1.1"
    lines = [start, "Host: manager", f"Content-Length: {len(case.body)}", *case.headers]
    writer.write("\r\n".join([*lines, "", case.body]).encode())
    async with asyncio.timeout(30):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    writer.close()
    first, *rest = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    return int(first.split()[1]), headers
