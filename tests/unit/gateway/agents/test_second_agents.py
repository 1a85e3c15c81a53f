"""A second agent with the registration token of a cluster whose agent is connected."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from herder.api.management.clusters import CONNECTED, management_conditions
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.management.names import AGENT_CONFLICT, CONNECTED_SINCE
from herder.api.management.parameters import Parameters
from herder.api.management.registration import Tokens
from herder.engine.certificates import KeyPair
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Object
from herder.engine.wire import Request, Response
from herder.gateway.agents.displacement import AgentTokenReview, Answer, Verdict, decide_agent
from tests.support.engines import unique
from tests.unit.gateway.gateway_server import create_account_token, create_namespace
from tests.unit.gateway.managed_clusters import Manager, authority, running_manager

CLUSTER, TOKEN = "c-m-meadow22", "b" * 54
ADDRESS = "10.43.0.1:443"
SIGNER, CA, OTHER_CA = authority("manager"), authority("meadow"), authority("mallory")


def agent(ca: KeyPair = CA, token: str = "service-account-token", address: str = ADDRESS) -> Parameters:
    return Parameters(address, token, ca.certificate_pem.decode())


@dataclass
class Dialer:
    manager: Manager
    connections: list[asyncio.StreamWriter] = field(default_factory=list)

    async def dial(self, parameters: Parameters) -> int:
        """Register as an agent, and return the status: 101 if the tunnel is open."""
        trusted = ssl.create_default_context(cadata=SIGNER.certificate_pem.decode())
        port = int(self.manager.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted)
        lines = ["GET /v3/connect/register HTTP/1.1", "Host: manager", "Connection: Upgrade", "Upgrade: websocket"]
        lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="]
        lines += [f"X-API-Tunnel-Token: {TOKEN}", f"X-API-Tunnel-Params: {parameters.encoded()}"]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        self.connections.append(writer)
        async with asyncio.timeout(30):
            return int((await reader.readuntil(b"\r\n\r\n")).split()[1])

    async def disconnect(self) -> None:
        """Close all tunnels, and wait until the manager knows."""
        for writer in self.connections:
            writer.close()
            with suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()
        self.connections.clear()
        async with asyncio.timeout(30):
            while self.manager.registry.has(CLUSTER):
                await asyncio.sleep(0.01)

    async def note_disconnected(self) -> None:
        """Set the condition as controllers do when an agent has disconnected."""
        disconnected = {"type": CONNECTED, "status": "False", "lastTransitionTime": datetime.now(UTC).isoformat()}
        conditions = [*((await self.cluster()).get("status") or {}).get("conditions", ()), disconnected]
        await self.manager.client.patch(
            MANAGEMENT_CLUSTER.resource, CLUSTER, {"status": {"conditions": conditions}}, subresource="status"
        )

    async def cluster(self) -> Object:
        return await self.manager.client.get(MANAGEMENT_CLUSTER.resource, CLUSTER)

    async def recorded(self) -> tuple[str, str]:
        """The recorded address and CA of the cluster, to which requests are sent."""
        status = (await self.cluster())["status"]
        return status["apiEndpoint"].removeprefix("https://"), base64.b64decode(status["caCert"]).decode()


@pytest.fixture
async def dialer() -> AsyncIterator[Dialer]:
    tokens = Tokens(TOKEN, datetime.now(UTC) + timedelta(days=1))
    async with running_manager({CLUSTER: tokens}, SIGNER) as manager:
        created = Dialer(manager)
        try:
            assert await created.dial(agent()) == 101
            yield created
        finally:
            await created.disconnect()


@pytest.mark.parametrize(
    "other",
    [
        agent(OTHER_CA, "mine", "10.66.0.1:443"),
        agent(OTHER_CA, "mine"),
        agent(CA, "mine"),
        agent(CA, "mine", "10.66.0.1:443"),
    ],
    ids=["all", "ca and token", "token", "address and token"],
)
async def test_a_second_agent_does_not_displace_one_that_is_connected(dialer: Dialer, other: Parameters) -> None:
    before = await dialer.recorded()
    assert await dialer.dial(other) != 101
    assert await dialer.recorded() == before
    assert len(dialer.manager.registry.sessions(CLUSTER)) == 1
    assert (await dialer.cluster())["metadata"]["annotations"][AGENT_CONFLICT].endswith(" refused")


async def test_the_same_agent_may_have_several_tunnels(dialer: Dialer) -> None:
    assert await dialer.dial(agent()) == 101


async def test_another_agent_is_admitted_when_the_first_is_disconnected(dialer: Dialer) -> None:
    await dialer.disconnect()
    assert await dialer.dial(agent(token="reinstalled")) == 101


async def test_a_cluster_can_vouch_for_another_token_but_not_for_another_ca(dialer: Dialer) -> None:
    dialer.manager.answer = Answer.VOUCHES
    assert await dialer.dial(agent(OTHER_CA, "mine")) != 101
    assert await dialer.dial(agent(token="renewed", address="10.43.0.1:6443")) == 101
    assert await dialer.recorded() == ("10.43.0.1:6443", CA.certificate_pem.decode())
    assert await dialer.dial(agent()) == 101, "the former agent is vouched for too"


async def test_a_session_without_a_working_api_server_is_displaced(dialer: Dialer) -> None:
    """Otherwise an impostor that connected while the agent was away would keep it out."""
    dialer.manager.answer = Answer.SILENT
    assert await dialer.dial(agent(OTHER_CA, "mine")) != 101
    assert await dialer.dial(agent(token="of-the-agent")) == 101
    assert len(dialer.manager.registry.sessions(CLUSTER)) == 1, "the other session is ended"
    assert (await dialer.cluster())["metadata"]["annotations"][AGENT_CONFLICT].endswith(" displaced")


async def test_a_cluster_vouches_for_tokens_of_the_recorded_account(client: Client) -> None:
    """On both engines: the API server that verified the token reports its account."""
    namespace = unique("agents")
    await create_namespace(client, namespace)
    own, renewed = [await create_account_token(client, namespace, "cattle") for _ in range(2)]
    other = await create_account_token(client, namespace, "mallory")

    async def recorded(_cluster: str, _ca: str) -> tuple[Callable[[str], Client], str]:
        return lambda _token: client, own

    async def lost(_cluster: str, _ca: str) -> tuple[Callable[[str], Client], str]:
        return lambda _token: client, "no-token-of-this-server"

    clock = Clock()
    assert await AgentTokenReview(recorded, clock)(CLUSTER, renewed, "") is Answer.VOUCHES
    assert await AgentTokenReview(recorded, clock)(CLUSTER, other, "") is Answer.DENIES
    assert await AgentTokenReview(recorded, clock)(CLUSTER, "mine", "") is Answer.DENIES
    silent = AgentTokenReview(lost, clock)
    for seconds, answer in ((0, Answer.DENIES), (30, Answer.DENIES), (30, Answer.SILENT), (61, Answer.DENIES)):
        clock.now += timedelta(seconds=seconds)
        assert await silent(CLUSTER, renewed, "") is answer, "silence counts only if it lasts over repeated reviews"


class Reviewing:
    """An API server with these tokens: the account of each, and whether it may review others."""

    def __init__(self, known: dict[str, tuple[str, bool]]) -> None:
        self.recorded = known
        self.cut = False  # the connection is blocked

    async def clients(self, _cluster: str, _ca: str) -> tuple[Callable[[str], Client], str]:
        return lambda token: Client(ReviewTransport(self, token)), "recorded"


@dataclass
class ReviewTransport:
    server: Reviewing
    bearer: str

    async def send(self, request: Request) -> Response:
        account, may_review = self.server.recorded.get(self.bearer, ("", False))
        if self.server.cut or not account:
            return status(503 if self.server.cut else 401, "ServiceUnavailable" if self.server.cut else "Unauthorized")
        if not may_review:
            return status(403, "Forbidden")
        found = self.server.recorded.get(json.loads(request.body)["spec"]["token"])
        reviewed: Object = {"authenticated": found is not None, "user": {"username": found[0] if found else ""}}
        return Response(201, {"content-type": "application/json"}, json.dumps({"status": reviewed}).encode())

    async def close(self) -> None: ...


def status(code: int, reason: str) -> Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}
    return Response(code, {"content-type": "application/json"}, json.dumps(body).encode())


async def test_a_recorded_credential_without_rights_does_not_block_the_agent() -> None:
    """An impostor that connected while the agent was away may have the token of any service account of the cluster."""
    server = Reviewing({"recorded": ("default", False), "of-the-agent": ("cattle", True), "other": ("web", False)})
    review = AgentTokenReview(server.clients, Clock())
    assert await review(CLUSTER, "of-the-agent", "") is Answer.VOUCHES
    assert await review(CLUSTER, "other", "") is Answer.DENIES


async def test_silence_is_counted_per_agent() -> None:
    server, clock = Reviewing({"recorded": ("default", False), "of-mallory": ("web", False)}), Clock()
    review = AgentTokenReview(server.clients, clock)
    for seconds in (0, 30, 30):
        clock.now += timedelta(seconds=seconds)
        server.cut = True
        answer = await review(CLUSTER, "of-the-agent", "")
        server.cut = False
        assert await review(CLUSTER, "of-mallory", "") is Answer.DENIES
    assert answer is Answer.SILENT


NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    now = NOW

    def __call__(self) -> datetime:
        return self.now


@pytest.mark.parametrize(
    ("minutes", "status", "annotations", "verdict"),
    [
        (9, "False", {}, Verdict.REFUSED),
        (11, "False", {}, Verdict.REPLACED),
        (
            11,
            "False",
            {CONNECTED_SINCE: "2026-01-01T00:00:00Z"},
            Verdict.REFUSED,
        ),  # recorded before the manager restarted
        (11, "True", {}, Verdict.REFUSED),  # no controller has noticed the disconnection yet
    ],
)
async def test_a_rebuilt_cluster_is_accepted_after_a_while(
    minutes: int, status: str, annotations: Object, verdict: Verdict
) -> None:
    since = (NOW - timedelta(minutes=minutes)).isoformat()
    conditions = [{"type": CONNECTED, "status": status, "lastTransitionTime": since}]
    known = {"apiEndpoint": f"https://{ADDRESS}", "caCert": agent().encoded_ca, "conditions": conditions}
    cluster: Object = {"metadata": {"name": CLUSTER, "annotations": annotations}, "status": known}

    async def ask(_token: str, _ca: str) -> Answer:
        raise AssertionError("there is no agent to ask")

    assert await decide_agent(cluster, "before", agent(OTHER_CA, "new"), NOW, connected=False, ask=ask) is verdict


BUNDLE = Parameters(ADDRESS, "new", (CA.certificate_pem + OTHER_CA.certificate_pem).decode())


@pytest.mark.parametrize(
    ("claimed", "answer", "verdict"),
    [
        (agent(token="new"), None, Verdict.ACCEPTED),
        (BUNDLE, None, Verdict.REFUSED),
        (agent(token="new", address="10.43.0.9:443"), None, Verdict.REFUSED),
        (agent(token="new"), Answer.SILENT, Verdict.DISPLACED),
        (BUNDLE, Answer.SILENT, Verdict.REFUSED),
        (BUNDLE, Answer.VOUCHES, Verdict.ACCEPTED),
        (agent(token="new", address="10.43.0.9:443"), Answer.VOUCHES, Verdict.REFUSED),
    ],
)
async def test_another_ca_needs_a_voucher_of_the_cluster(
    claimed: Parameters, answer: Answer | None, verdict: Verdict
) -> None:
    """`answer` is that of the connected cluster; None if no agent has been connected for a minute."""
    conditions = [
        {"type": CONNECTED, "status": "False", "lastTransitionTime": (NOW - timedelta(minutes=1)).isoformat()}
    ]
    status = {"apiEndpoint": f"https://{ADDRESS}", "caCert": agent().encoded_ca, "conditions": conditions}
    cluster: Object = {"metadata": {"name": CLUSTER}, "status": status}

    async def ask(_token: str, ca: str) -> Answer:
        assert ca == CA.certificate_pem.decode(), "no other server gets the token"
        assert answer is not None
        return answer

    assert await decide_agent(cluster, "before", claimed, NOW, connected=answer is not None, ask=ask) is verdict


def test_owners_see_an_agent_conflict_for_a_day() -> None:
    annotations = {AGENT_CONFLICT: "2026-01-01T00:00:00Z refused"}
    cluster: Object = {"metadata": {"name": CLUSTER, "annotations": annotations}, "spec": {}}

    def reported(now: datetime) -> tuple[str, str]:
        conditions = {each["type"]: each for each in management_conditions(cluster, now)}
        return conditions["AgentConflict"]["status"], conditions["AgentConflict"].get("message", "")

    status, message = reported(NOW + timedelta(hours=23))
    assert status == "True"
    assert "was refused at 2026-01-01T00:00:00Z" in message
    assert reported(NOW + timedelta(hours=25)) == ("False", "")


@pytest.mark.parametrize("connected", [False, True], ids=["no agent", "a silent agent"])
async def test_an_agent_cannot_add_a_ca_to_the_recorded_one(dialer: Dialer, connected: bool) -> None:
    """The CA of a cluster is public. An attacker who could add a CA could answer requests in place of the cluster."""
    before = await dialer.recorded()
    dialer.manager.answer = Answer.SILENT
    if not connected:
        await dialer.disconnect()
        await dialer.note_disconnected()
    both = Parameters("10.66.0.1:443", "mine", before[1] + OTHER_CA.certificate_pem.decode())
    assert await dialer.dial(both) != 101
    assert await dialer.recorded() == before
    assert await dialer.dial(agent(token="of-the-agent")) == 101


async def test_a_cluster_that_rotates_its_ca_vouches_for_the_bundle(dialer: Dialer) -> None:
    dialer.manager.answer = Answer.VOUCHES
    rotated = agent().ca + OTHER_CA.certificate_pem.decode()
    assert await dialer.dial(Parameters(ADDRESS, "renewed", rotated)) == 101
    assert await dialer.recorded() == (ADDRESS, rotated)
