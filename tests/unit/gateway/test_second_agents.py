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
from tests.unit.gateway.front import account_token, namespace
from tests.unit.gateway.managed import Manager, authority, manager

CLUSTER, TOKEN = "c-m-meadow22", "b" * 54
ADDRESS = "10.43.0.1:443"
SIGNER, CA, OTHER_CA = authority("manager"), authority("meadow"), authority("mallory")


def agent(ca: KeyPair = CA, token: str = "service-account-token", address: str = ADDRESS) -> Parameters:
    return Parameters(address, token, ca.certificate_pem.decode())


@dataclass
class Dialer:
    here: Manager
    open: list[asyncio.StreamWriter] = field(default_factory=list)

    async def dial(self, told: Parameters) -> int:
        """The status of the answer to an agent that registers; 101: it has its tunnel."""
        trusted = ssl.create_default_context(cadata=SIGNER.certificate_pem.decode())
        port = int(self.here.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted)
        lines = ["GET /v3/connect/register HTTP/1.1", "Host: manager", "Connection: Upgrade", "Upgrade: websocket"]
        lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="]
        lines += [f"X-API-Tunnel-Token: {TOKEN}", f"X-API-Tunnel-Params: {told.encoded()}"]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        self.open.append(writer)
        async with asyncio.timeout(30):
            return int((await reader.readuntil(b"\r\n\r\n")).split()[1])

    async def hang_up(self) -> None:
        """All tunnels are gone, which the manager knows."""
        for writer in self.open:
            writer.close()
            with suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()
        self.open.clear()
        async with asyncio.timeout(30):
            while self.here.registry.has(CLUSTER):
                await asyncio.sleep(0.01)

    async def note_disconnected(self) -> None:
        """As controllers do when an agent has gone."""
        gone = {"type": CONNECTED, "status": "False", "lastTransitionTime": datetime.now(UTC).isoformat()}
        conditions = [*((await self.cluster()).get("status") or {}).get("conditions", ()), gone]
        await self.here.client.patch(
            MANAGEMENT_CLUSTER.resource, CLUSTER, {"status": {"conditions": conditions}}, subresource="status"
        )

    async def cluster(self) -> Object:
        return await self.here.client.get(MANAGEMENT_CLUSTER.resource, CLUSTER)

    async def known(self) -> tuple[str, str]:
        """Address and CA that requests to the cluster go by."""
        status = (await self.cluster())["status"]
        return status["apiEndpoint"].removeprefix("https://"), base64.b64decode(status["caCert"]).decode()


@pytest.fixture
async def dialer() -> AsyncIterator[Dialer]:
    tokens = Tokens(TOKEN, datetime.now(UTC) + timedelta(days=1))
    async with manager({CLUSTER: tokens}, SIGNER) as here:
        made = Dialer(here)
        try:
            assert await made.dial(agent()) == 101
            yield made
        finally:
            await made.hang_up()


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
    before = await dialer.known()
    assert await dialer.dial(other) != 101
    assert await dialer.known() == before
    assert len(dialer.here.registry.sessions(CLUSTER)) == 1
    assert (await dialer.cluster())["metadata"]["annotations"][AGENT_CONFLICT].endswith(" refused")


async def test_the_same_agent_may_have_several_tunnels(dialer: Dialer) -> None:
    assert await dialer.dial(agent()) == 101


async def test_another_agent_is_let_in_when_the_first_is_gone(dialer: Dialer) -> None:
    await dialer.hang_up()
    assert await dialer.dial(agent(token="installed-anew")) == 101


async def test_a_cluster_vouches_for_an_agent_with_another_token_and_for_none_with_another_ca(dialer: Dialer) -> None:
    dialer.here.answer = Answer.VOUCHES
    assert await dialer.dial(agent(OTHER_CA, "mine")) != 101
    assert await dialer.dial(agent(token="renewed", address="10.43.0.1:6443")) == 101
    assert await dialer.known() == ("10.43.0.1:6443", CA.certificate_pem.decode())
    assert await dialer.dial(agent()) == 101, "the one before is vouched for as well"


async def test_a_session_that_leads_nowhere_keeps_no_place(dialer: Dialer) -> None:
    """Else whoever came in while the agent was away would keep it out."""
    dialer.here.answer = Answer.SILENT
    assert await dialer.dial(agent(OTHER_CA, "mine")) != 101
    assert await dialer.dial(agent(token="of-the-agent")) == 101
    assert len(dialer.here.registry.sessions(CLUSTER)) == 1, "the other one is ended"
    assert (await dialer.cluster())["metadata"]["annotations"][AGENT_CONFLICT].endswith(" displaced")


async def test_a_cluster_knows_the_tokens_of_the_recorded_account(client: Client) -> None:
    """On both engines: the API server that verified the token says whose it is."""
    space = unique("agents")
    await namespace(client, space)
    own, renewed = [await account_token(client, space, "cattle") for _ in range(2)]
    other = await account_token(client, space, "mallory")

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
        assert await silent(CLUSTER, renewed, "") is answer, "silence counts when it has lasted, asked again and again"


class Reviewing:
    """An API server that knows these tokens: whose each is, and whether it may review others."""

    def __init__(self, known: dict[str, tuple[str, bool]]) -> None:
        self.known = known
        self.cut = False  # whoever carries the connection lets nothing through

    async def clients(self, _cluster: str, _ca: str) -> tuple[Callable[[str], Client], str]:
        return lambda token: Client(Reviews(self, token)), "recorded"


@dataclass
class Reviews:
    server: Reviewing
    bearer: str

    async def send(self, request: Request) -> Response:
        whose, may_review = self.server.known.get(self.bearer, ("", False))
        if self.server.cut or not whose:
            return status(503 if self.server.cut else 401, "ServiceUnavailable" if self.server.cut else "Unauthorized")
        if not may_review:
            return status(403, "Forbidden")
        found = self.server.known.get(json.loads(request.body)["spec"]["token"])
        reviewed: Object = {"authenticated": found is not None, "user": {"username": found[0] if found else ""}}
        return Response(201, {"content-type": "application/json"}, json.dumps({"status": reviewed}).encode())

    async def close(self) -> None: ...


def status(code: int, reason: str) -> Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}
    return Response(code, {"content-type": "application/json"}, json.dumps(body).encode())


async def test_a_credential_without_rights_keeps_no_agent_out() -> None:
    """Whoever came in while the agent was away may have the token of any service account of the cluster."""
    server = Reviewing({"recorded": ("default", False), "of-the-agent": ("cattle", True), "other": ("web", False)})
    vouching = AgentTokenReview(server.clients, Clock())
    assert await vouching(CLUSTER, "of-the-agent", "") is Answer.VOUCHES
    assert await vouching(CLUSTER, "other", "") is Answer.DENIES


async def test_silence_counts_for_each_agent() -> None:
    server, clock = Reviewing({"recorded": ("default", False), "of-mallory": ("web", False)}), Clock()
    vouching = AgentTokenReview(server.clients, clock)
    for seconds in (0, 30, 30):
        clock.now += timedelta(seconds=seconds)
        server.cut = True
        answer = await vouching(CLUSTER, "of-the-agent", "")
        server.cut = False
        assert await vouching(CLUSTER, "of-mallory", "") is Answer.DENIES
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
        (11, "False", {CONNECTED_SINCE: "2026-01-01T00:00:00Z"}, Verdict.REFUSED),  # of a manager that was down
        (11, "True", {}, Verdict.REFUSED),  # no controller has seen yet that it left
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
        raise AssertionError("nobody to ask")

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
async def test_only_who_is_vouched_for_brings_another_certificate(
    claimed: Parameters, answer: Answer | None, verdict: Verdict
) -> None:
    """`answer`: of the connected cluster; None while no agent is connected, which has been so for a minute."""
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


def test_owners_see_that_another_agent_came_for_a_day() -> None:
    marks = {AGENT_CONFLICT: "2026-01-01T00:00:00Z refused"}
    cluster: Object = {"metadata": {"name": CLUSTER, "annotations": marks}, "spec": {}}

    def reported(now: datetime) -> tuple[str, str]:
        conditions = {each["type"]: each for each in management_conditions(cluster, now)}
        return conditions["AgentConflict"]["status"], conditions["AgentConflict"].get("message", "")

    status, message = reported(NOW + timedelta(hours=23))
    assert status == "True"
    assert "was refused at 2026-01-01T00:00:00Z" in message
    assert reported(NOW + timedelta(hours=25)) == ("False", "")


@pytest.mark.parametrize("connected", [False, True], ids=["no agent", "a silent agent"])
async def test_an_agent_brings_no_further_ca_beside_the_known_one(dialer: Dialer, connected: bool) -> None:
    """The CA of a cluster is public. Whoever could add one to it would answer requests in the cluster's place."""
    before = await dialer.known()
    dialer.here.answer = Answer.SILENT
    if not connected:
        await dialer.hang_up()
        await dialer.note_disconnected()
    both = Parameters("10.66.0.1:443", "mine", before[1] + OTHER_CA.certificate_pem.decode())
    assert await dialer.dial(both) != 101
    assert await dialer.known() == before
    assert await dialer.dial(agent(token="of-the-agent")) == 101


async def test_a_cluster_that_rotates_its_ca_vouches_for_the_bundle(dialer: Dialer) -> None:
    dialer.here.answer = Answer.VOUCHES
    rotated = agent().ca + OTHER_CA.certificate_pem.decode()
    assert await dialer.dial(Parameters(ADDRESS, "renewed", rotated)) == 101
    assert await dialer.known() == (ADDRESS, rotated)
