"""How agents come here, and who does not come in."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from herder.api.capi.kinds import SECRET
from herder.api.management import names
from herder.api.management.crds import CRDS
from herder.api.management.kinds import MANAGEMENT_CLUSTER, REGISTRATION_TOKEN
from herder.api.management.parameters import BadParameters, Parameters, checked_address, decode
from herder.api.management.registration import Tokens, token_secret
from herder.api.settings import Settings
from herder.app.install import install_kinds
from herder.engine.certificates import authority
from herder.engine.client.client import Client
from herder.engine.control.cache import Change, Key
from herder.engine.meta.kinds import Object
from herder.engine.wire import Request, Response
from herder.gateway.agents.registration import Admitted, Refused, Registration
from tests.unit.engine.runtime.world import world
from tests.unit.gateway.managed import AT_HOME, managed

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CA = authority("downstream", now=NOW, life=timedelta(days=1)).certificate_pem.decode()
SERVER_CA = authority("manager", now=NOW, life=timedelta(days=1)).certificate_pem.decode()
MEADOW, PASTURE = "c-m-meadow22", "c-m-pasture2"
CURRENT, PREVIOUS, OTHER = "b" * 54, "c" * 54, "d" * 54
ADDRESS = "10.43.0.1:443"


@dataclass
class Desk:
    registration: Registration
    client: Client
    now: datetime = NOW
    gone: list[str] = field(default_factory=list)

    def ask(self, path: str) -> Response:
        answer = self.registration.answer(Request("GET", path))
        assert answer is not None
        return answer

    async def connect(self, token: str, parameters: str | None = None) -> Admitted | Refused:
        told = Parameters(ADDRESS, "service-account-token", CA).encoded() if parameters is None else parameters
        return await self.registration.authorize({"x-api-tunnel-token": token, "x-api-tunnel-params": told})

    async def cluster(self, name: str) -> Object:
        return await self.client.get(MANAGEMENT_CLUSTER.resource, name)


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    """Two clusters: one whose token was replaced, one with another token."""
    async with world() as made:
        client = made.outside
        await install_kinds(client, list(CRDS))
        replaced = Tokens(CURRENT, NOW + timedelta(days=30), PREVIOUS, NOW + timedelta(hours=3))
        await managed(client, MEADOW, replaced)
        await managed(client, PASTURE, Tokens(OTHER, NOW + timedelta(days=30)))
        flags = {"server-url": "https://manager.example.com", "cacerts": SERVER_CA}
        here = Desk(None, client)  # type: ignore[arg-type]
        here.registration = Registration(
            client, clock=lambda: here.now, setting=Settings(flags=flags).get, on_cluster_deleted=here.gone.append
        )
        running = asyncio.ensure_future(here.registration.run())
        await here.registration.ready()
        try:
            yield here
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


# --- the manifest ---------------------------------------------------------------------------------------------------


async def test_the_manifest_is_for_who_has_the_token(desk: Desk) -> None:
    answer = desk.ask(f"/v3/import/{CURRENT}_{MEADOW}.yaml")
    assert answer.status == 200
    objects = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(answer.content())}
    (container,) = objects["Deployment", "cattle-cluster-agent"]["spec"]["template"]["spec"]["containers"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert environment["CATTLE_SERVER"] == "https://manager.example.com"
    assert environment["CATTLE_CA_CHECKSUM"] == hashlib.sha256(SERVER_CA.strip().encode() + b"\n").hexdigest()
    assert environment["STRICT_VERIFY"] == "true"
    assert CURRENT not in environment.values(), "the token is in the Secret alone"
    key = hashlib.sha256(f"https://manager.example.com.{CURRENT}.".encode()).hexdigest()[:10]
    assert base64.b64decode(objects["Secret", f"cattle-credentials-{key}"]["data"]["token"]).decode() == CURRENT


@pytest.mark.parametrize(
    "odd", ["text", 5, [1, None, "a"], {"a": 1}, [{"name": ["a"]}, {"name": {}, "value": {}}]], ids=str
)
async def test_what_owners_write_as_variables_of_the_agent_keeps_nobody_from_the_manifest(desk: Desk, odd: Any) -> None:
    wanted = {"spec": {"agentEnvVars": odd, "changed": True}}
    await desk.client.patch(MANAGEMENT_CLUSTER.resource, MEADOW, wanted)
    async with asyncio.timeout(30):
        while not ((desk.registration._clusters.get(Key("", MEADOW)) or {})["spec"]).get("changed"):
            await asyncio.sleep(0)
    answer = desk.ask(f"/v3/import/{CURRENT}_{MEADOW}.yaml")
    assert answer.status == 200
    assert b"CATTLE_CA_CHECKSUM" in answer.content()


async def test_many_variables_of_the_agent_are_rendered_quickly(desk: Desk) -> None:
    """Whoever has the token can ask for the manifest again and again."""
    variables = [{"name": f"V{number}", "value": "\"x: 'y'\n\x7f\x85\u2028\ufeff"} for number in range(25_000)]
    await desk.client.patch(MANAGEMENT_CLUSTER.resource, MEADOW, {"spec": {"agentEnvVars": variables}})
    async with asyncio.timeout(30):
        while not ((desk.registration._clusters.get(Key("", MEADOW)) or {})["spec"]).get("agentEnvVars"):
            await asyncio.sleep(0)
    started = time.thread_time()
    answer = desk.ask(f"/v3/import/{CURRENT}_{MEADOW}.yaml")
    assert time.thread_time() - started < 0.3
    (deployment,) = (
        doc for doc in answer.content().decode().split("---\n") if "kind: Deployment" in doc or '"Deployment"' in doc
    )
    (container,) = yaml.load(deployment, yaml.CSafeLoader)["spec"]["template"]["spec"]["containers"]
    assert variables[0] in container["env"]
    assert len(container["env"]) > 25_000


@pytest.mark.parametrize(
    "name",
    [
        f"{OTHER}_{MEADOW}.yaml",  # another cluster's token
        f"{CURRENT}_{PASTURE}.yaml",
        f"{'z' * 54}_{MEADOW}.yaml",
        f"{CURRENT[:-1]}_{MEADOW}.yaml",
        f"{CURRENT}_nowhere.yaml",
        f"_{MEADOW}.yaml",
        "../../etc/passwd",
    ],
)
async def test_anyone_else_gets_no_manifest(desk: Desk, name: str) -> None:
    answer = desk.ask(f"/v3/import/{name}")
    assert (answer.status, answer.content()) == (400, b"cluster not found or invalid token")


async def test_agents_are_told_whom_to_trust(desk: Desk) -> None:
    assert desk.ask("/ping").content() == b"pong"
    value = json.loads(desk.ask("/v3/settings/cacerts").content())["value"]
    assert value == SERVER_CA.strip()
    assert desk.ask("/cacerts").content().decode() == f"{value}\n"


# --- tunnels --------------------------------------------------------------------------------------------------------


async def test_an_agent_is_let_in_and_what_it_tells_is_kept(desk: Desk) -> None:
    assert await desk.connect(CURRENT) == Admitted(MEADOW)
    status = (await desk.cluster(MEADOW))["status"]
    assert status["apiEndpoint"] == f"https://{ADDRESS}"
    assert base64.b64decode(status["caCert"]).decode() == CA
    assert status["driver"] == "imported"
    secret = await desk.client.get(
        SECRET.resource, status["serviceAccountTokenSecret"], namespace=names.CREDENTIALS_NAMESPACE
    )
    assert base64.b64decode(secret["data"]["credential"]) == b"service-account-token"
    assert "service-account-token" not in str(await desk.cluster(MEADOW))
    assert (await desk.cluster(PASTURE))["status"] == AT_HOME


async def test_an_agent_that_comes_back_writes_nothing(desk: Desk) -> None:
    await desk.connect(CURRENT)
    before = (await desk.cluster(MEADOW))["metadata"]["resourceVersion"]
    while (desk.registration._clusters.get(("", MEADOW)) or {}).get("status") is None:  # type: ignore[arg-type]
        await asyncio.sleep(0)
    await desk.connect(CURRENT)
    assert (await desk.cluster(MEADOW))["metadata"]["resourceVersion"] == before


@pytest.mark.parametrize(
    ("token", "later", "let_in"),
    [
        (CURRENT, timedelta(), True),
        (PREVIOUS, timedelta(), True),
        (PREVIOUS, timedelta(hours=3), False),  # the grace period is over
        (CURRENT, timedelta(days=32), False),  # nobody replaced it
        ("z" * 54, timedelta(), False),
        (CURRENT + "b", timedelta(), False),
        ("", timedelta(), False),
        ("é" * 54, timedelta(), False),
        ("b" * 100_000, timedelta(), False),
    ],
)
async def test_only_a_token_that_counts_opens_a_tunnel(desk: Desk, token: str, later: timedelta, let_in: bool) -> None:
    desk.now = NOW + later
    wanted = Admitted(MEADOW) if let_in else Refused(401, "failed authentication")
    assert await desk.connect(token) == wanted


async def test_the_second_tunnel_is_opened_by_the_same_token(desk: Desk) -> None:
    opened = await desk.registration.authorize({"authorization": f"Bearer stv-cluster-{CURRENT}"})
    assert opened == Admitted(f"stv-cluster-{MEADOW}")
    refused = await desk.registration.authorize({"authorization": f"Bearer stv-cluster-{'z' * 54}"})
    assert refused == Refused(401, "failed authentication")
    assert await desk.registration.authorize({"authorization": f"Bearer {CURRENT}"}) == Refused(
        401, "failed authentication"
    )


async def test_there_is_no_agent_of_the_managers_own_cluster(desk: Desk) -> None:
    """Whoever reads the Secrets of its namespace would say where the manager's own API is."""
    own = "w" * 54
    await managed(desk.client, names.LOCAL, Tokens(own, NOW + timedelta(days=1)))
    await desk.client.patch(MANAGEMENT_CLUSTER.resource, names.LOCAL, {"spec": {"internal": True}})
    place = Key("", names.LOCAL)
    while not ((desk.registration._clusters.get(place) or {}).get("spec") or {}).get("internal"):
        await asyncio.sleep(0)
    while desk.registration._secrets.get(Key(names.LOCAL, "crt-token-default-token")) is None:
        await asyncio.sleep(0)
    assert await desk.connect(own) == Refused(401, "failed authentication")


@pytest.mark.parametrize("owned", [False, True])
async def test_a_token_that_the_manager_did_not_issue_opens_nothing(desk: Desk, owned: bool) -> None:
    """Whoever may create Secrets in the namespace of a cluster, or in any other, makes no registration token."""
    forged = "x" * 54
    registration = {"metadata": {"name": "forged", "namespace": MEADOW}}
    owner = {
        "apiVersion": REGISTRATION_TOKEN.api_version,
        "kind": REGISTRATION_TOKEN.kind,
        "name": "forged",
        "uid": "1",
    }
    secret = token_secret(registration, Tokens(forged, NOW + timedelta(days=1)), owner)
    if not owned:
        del secret["metadata"]["ownerReferences"]
    await desk.client.create(SECRET.resource, secret, namespace=MEADOW)
    while desk.registration._secrets.get(Key(MEADOW, "crt-token-forged")) is None:
        await asyncio.sleep(0)
    assert await desk.connect(forged) == Refused(401, "failed authentication")
    assert desk.ask(f"/v3/import/{forged}_{MEADOW}.yaml").status == 400


async def test_a_cluster_that_was_deleted_and_created_again_unseen_is_closed(desk: Desk) -> None:
    """After a gap in a watch, both come as one change. The next cluster of the name may be another user's."""
    old = await desk.client.get(MANAGEMENT_CLUSTER.resource, MEADOW)
    desk.registration._cluster_changed(Change(Key("", MEADOW), old, {**old, "spec": {"displayName": "edited"}}))
    assert desk.gone == []
    another = {**old, "metadata": {**old["metadata"], "uid": "another"}}
    desk.registration._cluster_changed(Change(Key("", MEADOW), old, another))
    assert desk.gone == [MEADOW]


async def test_a_cluster_that_is_deleted_is_closed(desk: Desk) -> None:
    await desk.client.delete(MANAGEMENT_CLUSTER.resource, MEADOW)
    while not desk.gone:
        await asyncio.sleep(0)
    assert desk.gone == [MEADOW]
    assert await desk.connect(CURRENT) == Refused(401, "failed authentication")
    assert desk.ask(f"/v3/import/{CURRENT}_{MEADOW}.yaml").status == 400


async def test_the_next_cluster_of_that_name_is_not_opened_by_what_is_left_of_the_one_before(desk: Desk) -> None:
    """The namespace of the deleted one, with its token, goes a while after it."""
    await desk.client.delete(MANAGEMENT_CLUSTER.resource, MEADOW)
    cluster = {"apiVersion": MANAGEMENT_CLUSTER.api_version, "kind": "Cluster", "metadata": {"name": MEADOW}}
    await desk.client.create(MANAGEMENT_CLUSTER.resource, cluster | {"spec": {}})
    for _ in range(100):  # until it is known here, and longer
        await asyncio.sleep(0)
        assert await desk.connect(CURRENT) == Refused(401, "failed authentication")
        assert desk.ask(f"/v3/import/{CURRENT}_{MEADOW}.yaml").status == 400
    await desk.client.patch(MANAGEMENT_CLUSTER.resource, MEADOW, {"status": AT_HOME}, subresource="status")
    while await desk.connect(CURRENT) != Admitted(MEADOW):  # were it its own
        await asyncio.sleep(0)


# --- what an agent may say ------------------------------------------------------------------------------------------


def told(**changes: object) -> str:
    whole = {"address": ADDRESS, "token": "t", "caCert": base64.b64encode(CA.encode()).decode(), **changes}
    return base64.b64encode(json.dumps({"cluster": whole}).encode()).decode()


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ("", "X-API-Tunnel-Params"),
        ("not base64!", "X-API-Tunnel-Params"),
        (base64.b64encode(b"[1]").decode(), "cluster: required"),
        (base64.b64encode(b"[" * 40_000).decode(), "not JSON"),
        ("A" * 100_000, "longer than"),
        (told(address=""), "cluster.address"),
        (told(address=7), "cluster.address"),
        (told(token=""), "cluster.token"),
        (told(token="a\r\nHost: b"), "cluster.token"),
        (told(caCert=""), "cluster.caCert"),
        (told(caCert="bm90IHBlbQ=="), "cluster.caCert"),
        (told(caCert=base64.b64encode(f"\u00e9\n{CA}".encode()).decode()), "cluster.caCert"),
    ],
)
async def test_what_cannot_be_used_is_refused_by_the_name_of_its_field(desk: Desk, parameters: str, field: str) -> None:
    refused = await desk.connect(CURRENT, parameters)
    assert isinstance(refused, Refused)
    assert refused.status == 400
    assert field in refused.text


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254:80",
        "[fe80::1]:443",
        "[::ffff:169.254.169.254]:80",
        "[fd00:ec2::254]:80",
        "100.100.100.200:80",
        "metadata.google.internal:80",
        "2852039166:80",
        "0xa9fea9fe:80",
        "0.0.0.0:443",
        "224.0.0.1:443",
        "10.0.0.1",
        "10.0.0.1:0",
        "10.0.0.1:70000",
        "10.0.0.1:443/../x",
        "user@host:443",
        "fe80::1%eth0:443",
        "a b:443",
    ],
)
def test_no_credential_is_sent_where_no_api_server_can_be(address: str) -> None:
    with pytest.raises(BadParameters, match="address"):
        checked_address(address)


@pytest.mark.parametrize("address", ["10.43.0.1:443", "127.0.0.1:6443", "[fd00::1]:443", "kubernetes.default.svc:443"])
def test_addresses_of_api_servers_are_taken(address: str) -> None:
    assert checked_address(address) == address


def test_parameters_are_read_as_they_are_written() -> None:
    written = Parameters(ADDRESS, "token", CA)
    assert decode(written.encoded()) == written
    assert "token" not in repr(written)


# --- proof of who the manager is ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("token", "known"), [(CURRENT, True), (PREVIOUS, True), (OTHER, True), ("z" * 54, False)])
async def test_who_shows_the_digest_of_a_token_gets_proof_that_we_know_it(desk: Desk, token: str, known: bool) -> None:
    shown = base64.b64encode(hashlib.sha256(token.encode()).digest()).decode()
    headers = {"x-cattle-nonce": "once", "authorization": f"Bearer {shown}"}
    answer = desk.registration.answer(Request("GET", "/cacerts", headers=headers))
    assert answer is not None
    proof = hmac.new(token.encode(), b"once\0" + answer.content() + b"\0", hashlib.sha512).digest()
    assert answer.headers.get("x-cattle-hash") == (base64.b64encode(proof).decode() if known else None)


@pytest.mark.parametrize(
    "headers",
    [
        {"x-cattle-nonce": "once"},
        {"authorization": "Bearer !"},
        {},
        {"x-cattle-nonce": "once", "authorization": "Bearer !"},
        {"x-cattle-nonce": "once", "authorization": "Bearer \u00e9"},
    ],
)
async def test_without_either_there_is_no_proof(desk: Desk, headers: dict[str, str]) -> None:
    answer = desk.registration.answer(Request("GET", "/cacerts", headers=headers))
    assert answer is not None
    assert "x-cattle-hash" not in answer.headers
