"""Registration of agents: manifests, tunnels, and rejected requests."""

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
from tests.unit.engine.runtime.envtest import environment
from tests.unit.gateway.managed_clusters import NAMESPACE_READY, create_managed_cluster

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CA = authority("downstream", now=NOW, life=timedelta(days=1)).certificate_pem.decode()
SERVER_CA = authority("manager", now=NOW, life=timedelta(days=1)).certificate_pem.decode()
MEADOW, PASTURE = "c-m-meadow22", "c-m-pasture2"
CURRENT, PREVIOUS, OTHER = "b" * 54, "c" * 54, "d" * 54
ADDRESS = "10.43.0.1:443"


@dataclass
class Harness:
    registration: Registration
    client: Client
    now: datetime = NOW
    deleted: list[str] = field(default_factory=list)

    def get(self, path: str) -> Response:
        response = self.registration.answer(Request("GET", path))
        assert response is not None
        return response

    async def connect(self, token: str, parameters: str | None = None) -> Admitted | Refused:
        encoded = Parameters(ADDRESS, "service-account-token", CA).encoded() if parameters is None else parameters
        return await self.registration.authorize({"x-api-tunnel-token": token, "x-api-tunnel-params": encoded})

    async def cluster(self, name: str) -> Object:
        return await self.client.get(MANAGEMENT_CLUSTER.resource, name)


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    """Two clusters: one whose token was rotated, and one with another token."""
    async with environment() as env:
        client = env.outside
        await install_kinds(client, list(CRDS))
        rotated = Tokens(CURRENT, NOW + timedelta(days=30), PREVIOUS, NOW + timedelta(hours=3))
        await create_managed_cluster(client, MEADOW, rotated)
        await create_managed_cluster(client, PASTURE, Tokens(OTHER, NOW + timedelta(days=30)))
        flags = {"server-url": "https://manager.example.com", "cacerts": SERVER_CA}
        created = Harness(None, client)  # type: ignore[arg-type]
        created.registration = Registration(
            client,
            clock=lambda: created.now,
            setting=Settings(flags=flags).get,
            on_cluster_deleted=created.deleted.append,
        )
        running = asyncio.ensure_future(created.registration.run())
        await created.registration.ready()
        try:
            yield created
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


# --- the manifest ---------------------------------------------------------------------------------------------------


async def test_the_manifest_needs_the_registration_token(harness: Harness) -> None:
    response = harness.get(f"/v3/import/{CURRENT}_{MEADOW}.yaml")
    assert response.status == 200
    objects = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(response.content())}
    (container,) = objects["Deployment", "cattle-cluster-agent"]["spec"]["template"]["spec"]["containers"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert environment["CATTLE_SERVER"] == "https://manager.example.com"
    assert environment["CATTLE_CA_CHECKSUM"] == hashlib.sha256(SERVER_CA.strip().encode() + b"\n").hexdigest()
    assert environment["STRICT_VERIFY"] == "true"
    assert CURRENT not in environment.values(), "the token is in the Secret alone"
    key = hashlib.sha256(f"https://manager.example.com.{CURRENT}.".encode()).hexdigest()[:10]
    assert base64.b64decode(objects["Secret", f"cattle-credentials-{key}"]["data"]["token"]).decode() == CURRENT


@pytest.mark.parametrize(
    "malformed", ["text", 5, [1, None, "a"], {"a": 1}, [{"name": ["a"]}, {"name": {}, "value": {}}]], ids=str
)
async def test_malformed_agent_variables_do_not_break_the_manifest(harness: Harness, malformed: Any) -> None:
    patch = {"spec": {"agentEnvVars": malformed, "changed": True}}
    await harness.client.patch(MANAGEMENT_CLUSTER.resource, MEADOW, patch)
    async with asyncio.timeout(30):
        while not ((harness.registration._clusters.get(Key("", MEADOW)) or {})["spec"]).get("changed"):
            await asyncio.sleep(0)
    response = harness.get(f"/v3/import/{CURRENT}_{MEADOW}.yaml")
    assert response.status == 200
    assert b"CATTLE_CA_CHECKSUM" in response.content()


async def test_many_agent_variables_are_rendered_quickly(harness: Harness) -> None:
    """The holder of the token can request the manifest again and again."""
    variables = [{"name": f"V{number}", "value": "\"x: 'y'\n\x7f\x85\u2028\ufeff"} for number in range(25_000)]
    await harness.client.patch(MANAGEMENT_CLUSTER.resource, MEADOW, {"spec": {"agentEnvVars": variables}})
    async with asyncio.timeout(30):
        while not ((harness.registration._clusters.get(Key("", MEADOW)) or {})["spec"]).get("agentEnvVars"):
            await asyncio.sleep(0)
    started = time.thread_time()
    response = harness.get(f"/v3/import/{CURRENT}_{MEADOW}.yaml")
    assert time.thread_time() - started < 0.3
    (deployment,) = (
        doc for doc in response.content().decode().split("---\n") if "kind: Deployment" in doc or '"Deployment"' in doc
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
async def test_without_a_valid_token_there_is_no_manifest(harness: Harness, name: str) -> None:
    response = harness.get(f"/v3/import/{name}")
    assert (response.status, response.content()) == (400, b"cluster not found or invalid token")


async def test_agents_can_fetch_the_ca(harness: Harness) -> None:
    assert harness.get("/ping").content() == b"pong"
    value = json.loads(harness.get("/v3/settings/cacerts").content())["value"]
    assert value == SERVER_CA.strip()
    assert harness.get("/cacerts").content().decode() == f"{value}\n"


# --- tunnels --------------------------------------------------------------------------------------------------------


async def test_an_agent_is_admitted_and_its_parameters_are_stored(harness: Harness) -> None:
    assert await harness.connect(CURRENT) == Admitted(MEADOW)
    status = (await harness.cluster(MEADOW))["status"]
    assert status["apiEndpoint"] == f"https://{ADDRESS}"
    assert base64.b64decode(status["caCert"]).decode() == CA
    assert status["driver"] == "imported"
    secret = await harness.client.get(
        SECRET.resource, status["serviceAccountTokenSecret"], namespace=names.CREDENTIALS_NAMESPACE
    )
    assert base64.b64decode(secret["data"]["credential"]) == b"service-account-token"
    assert "service-account-token" not in str(await harness.cluster(MEADOW))
    assert (await harness.cluster(PASTURE))["status"] == NAMESPACE_READY


async def test_a_reconnecting_agent_causes_no_write(harness: Harness) -> None:
    await harness.connect(CURRENT)
    before = (await harness.cluster(MEADOW))["metadata"]["resourceVersion"]
    while (harness.registration._clusters.get(("", MEADOW)) or {}).get("status") is None:  # type: ignore[arg-type]
        await asyncio.sleep(0)
    await harness.connect(CURRENT)
    assert (await harness.cluster(MEADOW))["metadata"]["resourceVersion"] == before


@pytest.mark.parametrize(
    ("token", "elapsed", "admitted"),
    [
        (CURRENT, timedelta(), True),
        (PREVIOUS, timedelta(), True),
        (PREVIOUS, timedelta(hours=3), False),  # the grace period is over
        (CURRENT, timedelta(days=32), False),  # it was not rotated
        ("z" * 54, timedelta(), False),
        (CURRENT + "b", timedelta(), False),
        ("", timedelta(), False),
        ("é" * 54, timedelta(), False),
        ("b" * 100_000, timedelta(), False),
    ],
)
async def test_only_a_valid_token_opens_a_tunnel(
    harness: Harness, token: str, elapsed: timedelta, admitted: bool
) -> None:
    harness.now = NOW + elapsed
    expected = Admitted(MEADOW) if admitted else Refused(401, "failed authentication")
    assert await harness.connect(token) == expected


async def test_the_second_tunnel_needs_the_same_token(harness: Harness) -> None:
    opened = await harness.registration.authorize({"authorization": f"Bearer stv-cluster-{CURRENT}"})
    assert opened == Admitted(f"stv-cluster-{MEADOW}")
    refused = await harness.registration.authorize({"authorization": f"Bearer stv-cluster-{'z' * 54}"})
    assert refused == Refused(401, "failed authentication")
    assert await harness.registration.authorize({"authorization": f"Bearer {CURRENT}"}) == Refused(
        401, "failed authentication"
    )


async def test_the_cluster_local_accepts_no_agent(harness: Harness) -> None:
    """A user who can read Secrets of its namespace could redirect requests to the manager's own API."""
    own = "w" * 54
    await create_managed_cluster(harness.client, names.LOCAL, Tokens(own, NOW + timedelta(days=1)))
    await harness.client.patch(MANAGEMENT_CLUSTER.resource, names.LOCAL, {"spec": {"internal": True}})
    key = Key("", names.LOCAL)
    while not ((harness.registration._clusters.get(key) or {}).get("spec") or {}).get("internal"):
        await asyncio.sleep(0)
    while harness.registration._secrets.get(Key(names.LOCAL, "crt-token-default-token")) is None:
        await asyncio.sleep(0)
    assert await harness.connect(own) == Refused(401, "failed authentication")


@pytest.mark.parametrize("owned", [False, True])
async def test_a_forged_registration_token_is_rejected(harness: Harness, owned: bool) -> None:
    """Users who may create Secrets in the namespace of a cluster cannot create registration tokens."""
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
    await harness.client.create(SECRET.resource, secret, namespace=MEADOW)
    while harness.registration._secrets.get(Key(MEADOW, "crt-token-forged")) is None:
        await asyncio.sleep(0)
    assert await harness.connect(forged) == Refused(401, "failed authentication")
    assert harness.get(f"/v3/import/{forged}_{MEADOW}.yaml").status == 400


async def test_a_recreated_cluster_is_disconnected_after_a_watch_gap(harness: Harness) -> None:
    """After a gap in a watch, both events arrive as one change. The next cluster of the name may be another user's."""
    old = await harness.client.get(MANAGEMENT_CLUSTER.resource, MEADOW)
    harness.registration._cluster_changed(Change(Key("", MEADOW), old, {**old, "spec": {"displayName": "edited"}}))
    assert harness.deleted == []
    another = {**old, "metadata": {**old["metadata"], "uid": "another"}}
    harness.registration._cluster_changed(Change(Key("", MEADOW), old, another))
    assert harness.deleted == [MEADOW]


async def test_a_deleted_cluster_is_disconnected(harness: Harness) -> None:
    await harness.client.delete(MANAGEMENT_CLUSTER.resource, MEADOW)
    while not harness.deleted:
        await asyncio.sleep(0)
    assert harness.deleted == [MEADOW]
    assert await harness.connect(CURRENT) == Refused(401, "failed authentication")
    assert harness.get(f"/v3/import/{CURRENT}_{MEADOW}.yaml").status == 400


async def test_the_token_of_a_deleted_cluster_does_not_open_its_successor(harness: Harness) -> None:
    """The namespace of the deleted cluster, with its token, is deleted a while later."""
    await harness.client.delete(MANAGEMENT_CLUSTER.resource, MEADOW)
    cluster = {"apiVersion": MANAGEMENT_CLUSTER.api_version, "kind": "Cluster", "metadata": {"name": MEADOW}}
    await harness.client.create(MANAGEMENT_CLUSTER.resource, cluster | {"spec": {}})
    for _ in range(100):  # until the gateway knows it, and longer
        await asyncio.sleep(0)
        assert await harness.connect(CURRENT) == Refused(401, "failed authentication")
        assert harness.get(f"/v3/import/{CURRENT}_{MEADOW}.yaml").status == 400
    await harness.client.patch(MANAGEMENT_CLUSTER.resource, MEADOW, {"status": NAMESPACE_READY}, subresource="status")
    while await harness.connect(CURRENT) != Admitted(MEADOW):  # if the token were its own
        await asyncio.sleep(0)


# --- parameters of an agent -----------------------------------------------------------------------------------------


def encoded_parameters(**changes: object) -> str:
    parameters = {"address": ADDRESS, "token": "t", "caCert": base64.b64encode(CA.encode()).decode(), **changes}
    return base64.b64encode(json.dumps({"cluster": parameters}).encode()).decode()


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ("", "X-API-Tunnel-Params"),
        ("not base64!", "X-API-Tunnel-Params"),
        (base64.b64encode(b"[1]").decode(), "cluster: required"),
        (base64.b64encode(b"[" * 40_000).decode(), "not JSON"),
        ("A" * 100_000, "longer than"),
        (encoded_parameters(address=""), "cluster.address"),
        (encoded_parameters(address=7), "cluster.address"),
        (encoded_parameters(token=""), "cluster.token"),
        (encoded_parameters(token="a\r\nHost: b"), "cluster.token"),
        (encoded_parameters(caCert=""), "cluster.caCert"),
        (encoded_parameters(caCert="bm90IHBlbQ=="), "cluster.caCert"),
        (encoded_parameters(caCert=base64.b64encode(f"\u00e9\n{CA}".encode()).decode()), "cluster.caCert"),
    ],
)
async def test_invalid_parameters_are_rejected_with_the_name_of_their_field(
    harness: Harness, parameters: str, field: str
) -> None:
    refused = await harness.connect(CURRENT, parameters)
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
def test_addresses_that_cannot_be_an_api_server_are_rejected(address: str) -> None:
    with pytest.raises(BadParameters, match="address"):
        checked_address(address)


@pytest.mark.parametrize("address", ["10.43.0.1:443", "127.0.0.1:6443", "[fd00::1]:443", "kubernetes.default.svc:443"])
def test_addresses_of_api_servers_are_accepted(address: str) -> None:
    assert checked_address(address) == address


def test_parameters_are_decoded_as_encoded() -> None:
    parameters = Parameters(ADDRESS, "token", CA)
    assert decode(parameters.encoded()) == parameters
    assert "token" not in repr(parameters)


# --- proof of the manager's identity --------------------------------------------------------------------------------


@pytest.mark.parametrize(("token", "known"), [(CURRENT, True), (PREVIOUS, True), (OTHER, True), ("z" * 54, False)])
async def test_a_client_with_a_token_digest_gets_proof_that_the_manager_knows_it(
    harness: Harness, token: str, known: bool
) -> None:
    digest = base64.b64encode(hashlib.sha256(token.encode()).digest()).decode()
    headers = {"x-cattle-nonce": "once", "authorization": f"Bearer {digest}"}
    response = harness.registration.answer(Request("GET", "/cacerts", headers=headers))
    assert response is not None
    proof = hmac.new(token.encode(), b"once\0" + response.content() + b"\0", hashlib.sha512).digest()
    assert response.headers.get("x-cattle-hash") == (base64.b64encode(proof).decode() if known else None)


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
async def test_without_nonce_or_token_there_is_no_proof(harness: Harness, headers: dict[str, str]) -> None:
    response = harness.registration.answer(Request("GET", "/cacerts", headers=headers))
    assert response is not None
    assert "x-cattle-hash" not in response.headers
