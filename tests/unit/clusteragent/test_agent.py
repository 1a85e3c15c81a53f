"""The agent between a cluster and its manager, each behind real TLS."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from herder.api.capi.kinds import SECRET
from herder.api.inmemory.names import SERVE_WORKLOAD
from herder.api.management import names
from herder.api.management.commands import ca_checksum
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.management.manifest import Agent as Manifest
from herder.api.management.manifest import manifest
from herder.api.management.registration import Tokens
from herder.clusteragent.agent import Agent
from herder.clusteragent.configuration import Configuration, ConfigurationError, configuration
from herder.clusteragent.tokens import RegistrationTokens
from herder.clusteragent.trust import Untrusted, trusted
from herder.effects.registration_token import Delivery
from herder.engine.client import kubeconfig
from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.tunnel.client import Backoff
from herder.tunnel.errors import StreamError
from herder.workload.authorities import usable
from herder.workload.serving import Workloads
from tests.unit.gateway.managed import Manager, authority, manager
from tests.unit.workload.clusters import clock, management, with_authority, workload_client

MEADOW, PASTURE = "c-m-meadow22", "c-m-pasture2"
TOKEN, OTHER = "b" * 54, "d" * 54
TOKENS = {
    name: Tokens(token, datetime.now(UTC) + timedelta(days=1)) for name, token in ((MEADOW, TOKEN), (PASTURE, OTHER))
}
QUICK = Backoff(first=0.01, max_delay=0.02)


@dataclass
class Downstream:
    """A cluster of its own, with the manifest applied."""

    kubeconfig: Path
    address: str
    ca: str


@asynccontextmanager
async def downstream(directory: Path) -> AsyncIterator[Downstream]:
    async with management() as client:
        data = await with_authority(client, "meadow")
        workloads = Workloads(client, clock=clock)
        where = {"namespace": "default", "cluster": "meadow", "port": 0, "fault": ""}
        served = await workloads.performers()[SERVE_WORKLOAD](where)
        inside = workload_client(data, served)
        try:
            for obj in manifest(Manifest("https://manager.example.com", TOKEN, "", "herder/agent:test")):
                await inside.apply(_resource(obj), obj)
            yield Downstream(
                _kubeconfig(directory, inside.transport.connection),  # type: ignore[attr-defined]
                f"127.0.0.1:{served['port']}",
                usable(data, "test").certificate_pem.decode(),
            )
        finally:
            await inside.close()
            await workloads.close()


def _resource(obj: Object) -> GroupVersionResource:
    group, _, version = obj["apiVersion"].rpartition("/")
    return GroupVersionResource(group, version, obj["kind"].lower() + "s")


def _kubeconfig(directory: Path, found: kubeconfig.RestConfig) -> Path:
    config = kubeconfig.build(
        server=found.server,
        ca=found.ca or b"",
        certificate=found.client_certificate or b"",
        key=found.client_key or b"",
    )
    path = directory / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


async def until(so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not so():
            await asyncio.sleep(0.005)


@dataclass
class Stage:
    manager: Manager
    cluster: Downstream

    def configured(self, **changes: object) -> Configuration:
        known = {
            "server": self.manager.url,
            "token": TOKEN,
            "ca_checksum": ca_checksum(self.manager.told),
            "strict": True,
            "kubeconfig": self.cluster.kubeconfig,
        }
        return Configuration(**{**known, **changes})  # type: ignore[arg-type]

    @asynccontextmanager
    async def agent(self, **changes: object) -> AsyncIterator[Agent]:
        agent = Agent(self.configured(**changes), pause=0.01, backoff=QUICK)
        running = asyncio.ensure_future(agent.run())
        try:
            tunnels = (MEADOW, f"stv-cluster-{MEADOW}")
            await until(lambda: running.done() or all(map(self.manager.registry.has, tunnels)))
            if running.done():
                await running
            yield agent
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with manager(TOKENS, authority("manager")) as here, downstream(tmp_path) as cluster:
        yield Stage(here, cluster)


async def test_the_manager_reaches_the_clusters_api_through_the_agent(stage: Stage) -> None:
    async with stage.agent():
        cluster = await stage.manager.client.get(MANAGEMENT_CLUSTER.resource, MEADOW)
        assert cluster["status"]["apiEndpoint"] == f"https://{stage.cluster.address}"
        ca = base64.b64decode(cluster["status"]["caCert"]).decode()
        secret = await stage.manager.client.get(
            SECRET.resource, cluster["status"]["serviceAccountTokenSecret"], namespace=names.CREDENTIALS_NAMESPACE
        )
        token = base64.b64decode(secret["data"]["credential"]).decode()
        dialled = stage.manager.registry.dial(MEADOW, "tcp", stage.cluster.address)
        reader = asyncio.StreamReader()
        transport = await dialled.tls(
            asyncio.StreamReaderProtocol(reader), ssl.create_default_context(cadata=ca), "127.0.0.1"
        )
        head = f"GET /api/v1/namespaces/cattle-system HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
        transport.write(head.encode())
        assert b"200 OK" in await asyncio.wait_for(reader.readline(), 20)
        transport.abort()
    assert stage.manager.paths.count("/v3/connect/register") == 1


async def test_an_agent_that_lost_its_tunnel_comes_back(stage: Stage) -> None:
    async with stage.agent():
        before = len(stage.manager.paths)
        stage.manager.registry.disconnect(MEADOW, "for the test")
        await until(lambda: len(stage.manager.paths) > before and stage.manager.registry.has(MEADOW))


async def test_nothing_but_the_api_server_can_be_dialled_unless_it_was_allowed(stage: Stage) -> None:
    async with echo() as open_one, echo() as closed_one, stage.agent(allowed=frozenset({open_one})):
        assert await said_back(stage.manager, open_one) == b"hello"
        for proto, address in (("tcp", closed_one), ("tcp", "169.254.169.254:80"), ("unix", "/var/run/docker.sock")):
            with pytest.raises(StreamError, match="not allowed by the cluster's agent"):
                await said_back(stage.manager, address, proto)
        assert await said_back(stage.manager, open_one) == b"hello", "the tunnel stands"


async def test_pings_are_answered_whatever_is_dialled_in_the_second_tunnel(stage: Stage) -> None:
    async with stage.agent():
        dialled = stage.manager.registry.dial(f"stv-cluster-{MEADOW}", "tcp", "127.0.0.1:6080")
        await dialled.send(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = bytes(await dialled.receive())
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert answer.endswith(b"pong")


async def test_a_token_that_was_replaced_in_its_file_is_used_at_the_next_attempt(stage: Stage, tmp_path: Path) -> None:
    file, health = tmp_path / "token", ("127.0.0.1", free_port())
    file.write_text("z" * 54)
    wanted = stage.configured(token=file, health=health)
    running = asyncio.ensure_future(Agent(wanted, pause=0.01, backoff=QUICK).run())
    try:
        await until(lambda: stage.manager.paths.count("/v3/connect/register") > 1)
        assert not stage.manager.registry.has(MEADOW)
        assert await health_of(*health) == b"HTTP/1.1 503 Service Unavailable"
        file.write_text(f"{TOKEN}\n")
        await until(lambda: stage.manager.registry.has(MEADOW))
        async with asyncio.timeout(20):
            while await health_of(*health) != b"HTTP/1.1 200 OK":
                await asyncio.sleep(0.005)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_the_token_that_the_manager_puts_into_the_cluster_is_used_from_then_on(stage: Stage) -> None:
    """The one that the agent was started with counts no more, as after its grace period."""
    async with stage.agent():
        renewed = "f" * 54
        name = names.token_secret(names.DEFAULT_TOKEN)
        encoded = base64.b64encode(renewed.encode()).decode()
        here = stage.manager.client
        await here.patch(SECRET.resource, name, {"data": {"token": encoded}}, namespace=MEADOW)
        assert stage.manager.registry.has(MEADOW), "who is in stays in"

        async def inside(_cluster: str) -> Client:
            return Client(HttpTransport(kubeconfig.load(stage.cluster.kubeconfig)))

        await Delivery(here, inside)({"management": MEADOW, "cluster": "ws/meadow"})
        stage.manager.registry.disconnect(MEADOW, "for the test")
        await until(lambda: any(renewed in value for value in stage.manager.headers))
        await until(lambda: stage.manager.registry.has(MEADOW))


def test_two_tokens_take_turns_while_neither_is_let_in() -> None:
    tokens = RegistrationTokens(lambda: "first")
    tokens.refused()
    assert tokens.current() == "first", "there is no other"
    tokens.replace("second")
    used = []
    for _ in range(3):
        used.append(tokens.current())
        tokens.refused()
    assert used == ["second", "first", "second"]


# --- whom it trusts -------------------------------------------------------------------------------------------------


async def test_another_server_gets_nothing_from_an_agent_that_has_a_checksum(tmp_path: Path) -> None:
    """As after a domain has changed hands: the server answers, with certificates of its own."""
    ours, theirs = authority("ours"), authority("theirs")
    async with manager(TOKENS, theirs) as impostor, downstream(tmp_path) as cluster:
        checksum = Stage(Manager(impostor.client, ours.certificate_pem.decode()), cluster).configured().ca_checksum
        with pytest.raises(Untrusted, match="the connection may be intercepted"):
            async with asyncio.timeout(30):  # one that was let in would stay for ever
                await Agent(Stage(impostor, cluster).configured(ca_checksum=checksum)).run()
        assert impostor.paths == ["/v3/settings/cacerts"]
        assert not any(TOKEN in value for value in impostor.headers)


async def test_telling_the_right_certificates_is_not_having_their_key(tmp_path: Path) -> None:
    ours, theirs = authority("ours"), authority("theirs")
    async with manager(TOKENS, theirs, told=ours.certificate_pem.decode()) as impostor, downstream(tmp_path) as cluster:
        with pytest.raises(Untrusted, match="not signed by a trusted CA"):
            await Agent(Stage(impostor, cluster).configured()).run()
        assert not any(TOKEN in value for value in impostor.headers)


async def test_the_right_authority_must_have_certified_this_very_name(tmp_path: Path) -> None:
    async with manager(TOKENS, authority("ours"), served="10.9.8.7") as other, downstream(tmp_path) as cluster:
        with pytest.raises(Untrusted):
            await Agent(Stage(other, cluster).configured()).run()


async def test_without_a_checksum_the_systems_authorities_decide(tmp_path: Path) -> None:
    async with manager(TOKENS, authority("nobody knows it")) as other, downstream(tmp_path) as cluster:
        with pytest.raises(Untrusted):
            await Agent(Stage(other, cluster).configured(ca_checksum="")).run()
    context = await trusted("https://unused.example.com", "")
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


# --- what it is told ------------------------------------------------------------------------------------------------

GOOD = {"CATTLE_SERVER": "https://m.example.com/", "CATTLE_TOKEN": "t", "CATTLE_CA_CHECKSUM": "A" * 64}


def test_the_environment_of_the_manifest_is_enough(tmp_path: Path) -> None:
    told = configuration([], GOOD | {"STRICT_VERIFY": "true"}, tmp_path)
    assert (told.server, told.read_token(), told.ca_checksum) == ("https://m.example.com", "t", "a" * 64)
    assert told.strict
    assert told.health == ("", 8080)
    assert told.tunnels == "wss://m.example.com"
    assert "'t'" not in repr(told)


def test_mounted_credentials_are_found(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("https://mounted.example.com")
    (tmp_path / "token").write_text("mounted\n")
    told = configuration([], {}, tmp_path)
    assert (told.server, told.read_token()) == ("https://mounted.example.com", "mounted")


@pytest.mark.parametrize(
    ("arguments", "changes", "names_it"),
    [
        ([], {"CATTLE_SERVER": ""}, "CATTLE_SERVER"),
        ([], {"CATTLE_SERVER": "http://m.example.com"}, "CATTLE_SERVER"),
        ([], {"CATTLE_TOKEN": ""}, "CATTLE_TOKEN"),
        ([], {"CATTLE_CA_CHECKSUM": "abc"}, "CATTLE_CA_CHECKSUM"),
        (["--allow", "everything"], {}, "--allow"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, arguments: list[str], changes: dict[str, str], names_it: str) -> None:
    with pytest.raises(ConfigurationError, match=names_it):
        configuration(arguments, GOOD | changes, tmp_path)


# --- parts ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def echo() -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(100))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def said_back(here: Manager, address: str, proto: str = "tcp") -> bytes:
    dialled = here.registry.dial(MEADOW, proto, address)
    await dialled.send(b"hello")
    return bytes(await dialled.receive())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


async def health_of(host: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    status = await reader.readline()
    writer.close()
    return status.strip()
