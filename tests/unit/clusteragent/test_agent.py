"""The agent between a cluster and its manager, both behind real TLS."""

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
from tests.unit.gateway.managed_clusters import Manager, authority, running_manager
from tests.unit.workload.clusters import clock, create_authority, management, workload_client

MEADOW, PASTURE = "c-m-meadow22", "c-m-pasture2"
TOKEN, OTHER = "b" * 54, "d" * 54
TOKENS = {
    name: Tokens(token, datetime.now(UTC) + timedelta(days=1)) for name, token in ((MEADOW, TOKEN), (PASTURE, OTHER))
}
QUICK = Backoff(first=0.01, max_delay=0.02)


@dataclass
class Downstream:
    """A cluster with the manifest applied."""

    kubeconfig: Path
    address: str
    ca: str


@asynccontextmanager
async def downstream(directory: Path) -> AsyncIterator[Downstream]:
    async with management() as client:
        data = await create_authority(client, "meadow")
        workloads = Workloads(client, clock=clock)
        arguments = {"namespace": "default", "cluster": "meadow", "port": 0, "fault": ""}
        served = await workloads.performers()[SERVE_WORKLOAD](arguments)
        cluster_client = workload_client(data, served)
        try:
            for obj in manifest(Manifest("https://manager.example.com", TOKEN, "", "herder/agent:test")):
                await cluster_client.apply(_resource(obj), obj)
            yield Downstream(
                _kubeconfig(directory, cluster_client.transport.connection),  # type: ignore[attr-defined]
                f"127.0.0.1:{served['port']}",
                usable(data, "test").certificate_pem.decode(),
            )
        finally:
            await cluster_client.close()
            await workloads.close()


def _resource(obj: Object) -> GroupVersionResource:
    group, _, version = obj["apiVersion"].rpartition("/")
    return GroupVersionResource(group, version, obj["kind"].lower() + "s")


def _kubeconfig(directory: Path, rest_config: kubeconfig.RestConfig) -> Path:
    config = kubeconfig.build(
        server=rest_config.server,
        ca=rest_config.ca or b"",
        certificate=rest_config.client_certificate or b"",
        key=rest_config.client_key or b"",
    )
    path = directory / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


@dataclass
class Harness:
    manager: Manager
    cluster: Downstream

    def configuration(self, **changes: object) -> Configuration:
        defaults = {
            "server": self.manager.url,
            "token": TOKEN,
            "ca_checksum": ca_checksum(self.manager.ca_certificates),
            "strict": True,
            "kubeconfig": self.cluster.kubeconfig,
        }
        return Configuration(**{**defaults, **changes})  # type: ignore[arg-type]

    @asynccontextmanager
    async def run_agent(self, **changes: object) -> AsyncIterator[Agent]:
        agent = Agent(self.configuration(**changes), pause=0.01, backoff=QUICK)
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
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with running_manager(TOKENS, authority("manager")) as manager, downstream(tmp_path) as cluster:
        yield Harness(manager, cluster)


async def test_the_manager_reaches_the_clusters_api_through_the_agent(harness: Harness) -> None:
    async with harness.run_agent():
        cluster = await harness.manager.client.get(MANAGEMENT_CLUSTER.resource, MEADOW)
        assert cluster["status"]["apiEndpoint"] == f"https://{harness.cluster.address}"
        ca = base64.b64decode(cluster["status"]["caCert"]).decode()
        secret = await harness.manager.client.get(
            SECRET.resource, cluster["status"]["serviceAccountTokenSecret"], namespace=names.CREDENTIALS_NAMESPACE
        )
        token = base64.b64decode(secret["data"]["credential"]).decode()
        stream = harness.manager.registry.dial(MEADOW, "tcp", harness.cluster.address)
        reader = asyncio.StreamReader()
        transport = await stream.tls(
            asyncio.StreamReaderProtocol(reader), ssl.create_default_context(cadata=ca), "127.0.0.1"
        )
        head = f"GET /api/v1/namespaces/cattle-system HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
        transport.write(head.encode())
        assert b"200 OK" in await asyncio.wait_for(reader.readline(), 20)
        transport.abort()
    assert harness.manager.paths.count("/v3/connect/register") == 1


async def test_the_manager_learns_new_authorities_of_the_cluster(harness: Harness) -> None:
    """After a CA rotation, the file has the old certificates and new ones. No restart of the agent is needed."""
    new = authority("rotated").certificate_pem.decode()
    running = asyncio.ensure_future(
        Agent(harness.configuration(), pause=0.01, backoff=QUICK, authorities_interval=0.05).run()
    )

    async def reported() -> str:
        cluster = await harness.manager.client.get(MANAGEMENT_CLUSTER.resource, MEADOW)
        return base64.b64decode((cluster.get("status") or {}).get("caCert") or "").decode()

    try:
        await until(lambda: harness.manager.registry.has(MEADOW))
        assert new not in await reported()
        config = yaml.safe_load(harness.cluster.kubeconfig.read_text())
        bundle = f"{harness.cluster.ca}{new}".encode()
        config["clusters"][0]["cluster"]["certificate-authority-data"] = base64.b64encode(bundle).decode()
        harness.cluster.kubeconfig.write_text(yaml.safe_dump(config))
        async with asyncio.timeout(20):
            while await reported() != bundle.decode():
                await asyncio.sleep(0.01)
        await until(lambda: harness.manager.registry.has(MEADOW))
        stream = harness.manager.registry.dial(MEADOW, "tcp", harness.cluster.address)
        stream.close()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_an_agent_that_lost_its_tunnel_reconnects(harness: Harness) -> None:
    async with harness.run_agent():
        before = len(harness.manager.paths)
        harness.manager.registry.disconnect(MEADOW, "for the test")
        await until(lambda: len(harness.manager.paths) > before and harness.manager.registry.has(MEADOW))


async def test_only_the_api_server_and_allowed_addresses_can_be_dialed(harness: Harness) -> None:
    async with (
        echo() as allowed_address,
        echo() as denied_address,
        harness.run_agent(allowed=frozenset({allowed_address})),
    ):
        assert await echoed(harness.manager, allowed_address) == b"hello"
        for proto, address in (
            ("tcp", denied_address),
            ("tcp", "169.254.169.254:80"),
            ("unix", "/var/run/docker.sock"),
        ):
            with pytest.raises(StreamError, match="not allowed by the cluster's agent"):
                await echoed(harness.manager, address, proto)
        assert await echoed(harness.manager, allowed_address) == b"hello", "the tunnel stays open"


async def test_the_second_tunnel_answers_pings_at_any_address(harness: Harness) -> None:
    async with harness.run_agent():
        stream = harness.manager.registry.dial(f"stv-cluster-{MEADOW}", "tcp", "127.0.0.1:6080")
        await stream.send(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        response = bytes(await stream.receive())
        assert response.startswith(b"HTTP/1.1 200 OK")
        assert response.endswith(b"pong")


async def test_a_replaced_token_file_is_read_at_the_next_attempt(harness: Harness, tmp_path: Path) -> None:
    file, health = tmp_path / "token", ("127.0.0.1", free_port())
    file.write_text("z" * 54)
    settings = harness.configuration(token=file, health=health)
    running = asyncio.ensure_future(Agent(settings, pause=0.01, backoff=QUICK).run())
    try:
        await until(lambda: harness.manager.paths.count("/v3/connect/register") > 1)
        assert not harness.manager.registry.has(MEADOW)
        assert await health_of(*health) == b"HTTP/1.1 503 Service Unavailable"
        file.write_text(f"{TOKEN}\n")
        await until(lambda: harness.manager.registry.has(MEADOW))
        async with asyncio.timeout(20):
            while await health_of(*health) != b"HTTP/1.1 200 OK":
                await asyncio.sleep(0.005)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_token_that_the_manager_delivers_replaces_the_old_one(harness: Harness) -> None:
    """The token that the agent was started with is no longer valid, as after its grace period."""
    async with harness.run_agent():
        renewed = "f" * 54
        name = names.token_secret(names.DEFAULT_TOKEN)
        encoded = base64.b64encode(renewed.encode()).decode()
        client = harness.manager.client
        await client.patch(SECRET.resource, name, {"data": {"token": encoded}}, namespace=MEADOW)
        assert harness.manager.registry.has(MEADOW), "the open session stays"

        async def connect_to_cluster(_cluster: str) -> Client:
            return Client(HttpTransport(kubeconfig.load(harness.cluster.kubeconfig)))

        await Delivery(client, connect_to_cluster)({"management": MEADOW, "cluster": "ws/meadow"})
        harness.manager.registry.disconnect(MEADOW, "for the test")
        await until(lambda: any(renewed in value for value in harness.manager.headers))
        await until(lambda: harness.manager.registry.has(MEADOW))


def test_two_tokens_alternate_while_both_are_rejected() -> None:
    tokens = RegistrationTokens(lambda: "first")
    tokens.refused()
    assert tokens.current() == "first", "there is no other"
    tokens.replace("second")
    used = []
    for _ in range(3):
        used.append(tokens.current())
        tokens.refused()
    assert used == ["second", "first", "second"]


# --- trust ----------------------------------------------------------------------------------------------------------


async def test_an_agent_with_a_checksum_sends_nothing_to_another_server(tmp_path: Path) -> None:
    """For example after a domain got a new owner: the server responds with its own certificates."""
    own_ca, foreign_ca = authority("ours"), authority("theirs")
    async with running_manager(TOKENS, foreign_ca) as impostor, downstream(tmp_path) as cluster:
        checksum = (
            Harness(Manager(impostor.client, own_ca.certificate_pem.decode()), cluster).configuration().ca_checksum
        )
        with pytest.raises(Untrusted, match="the connection may be intercepted"):
            async with asyncio.timeout(30):  # an admitted agent would run forever
                await Agent(Harness(impostor, cluster).configuration(ca_checksum=checksum)).run()
        assert impostor.paths == ["/v3/settings/cacerts"]
        assert not any(TOKEN in value for value in impostor.headers)


async def test_publishing_the_right_ca_is_not_enough_without_its_key(tmp_path: Path) -> None:
    own_ca, foreign_ca = authority("ours"), authority("theirs")
    async with (
        running_manager(TOKENS, foreign_ca, ca_certificates=own_ca.certificate_pem.decode()) as impostor,
        downstream(tmp_path) as cluster,
    ):
        with pytest.raises(Untrusted, match="not signed by a trusted CA"):
            await Agent(Harness(impostor, cluster).configuration()).run()
        assert not any(TOKEN in value for value in impostor.headers)


async def test_the_certificate_must_be_valid_for_the_name_of_the_manager(tmp_path: Path) -> None:
    async with running_manager(TOKENS, authority("ours"), address="10.9.8.7") as other, downstream(tmp_path) as cluster:
        with pytest.raises(Untrusted):
            await Agent(Harness(other, cluster).configuration()).run()


async def test_without_a_checksum_system_cas_are_trusted(tmp_path: Path) -> None:
    async with running_manager(TOKENS, authority("unknown")) as other, downstream(tmp_path) as cluster:
        with pytest.raises(Untrusted):
            await Agent(Harness(other, cluster).configuration(ca_checksum="")).run()
    context = await trusted("https://unused.example.com", "")
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


# --- configuration --------------------------------------------------------------------------------------------------

GOOD = {"CATTLE_SERVER": "https://m.example.com/", "CATTLE_TOKEN": "t", "CATTLE_CA_CHECKSUM": "A" * 64}


def test_the_environment_of_the_manifest_is_sufficient(tmp_path: Path) -> None:
    parsed = configuration([], GOOD | {"STRICT_VERIFY": "true"}, tmp_path)
    assert (parsed.server, parsed.read_token(), parsed.ca_checksum) == ("https://m.example.com", "t", "a" * 64)
    assert parsed.strict
    assert parsed.health == ("", 8080)
    assert parsed.tunnels == "wss://m.example.com"
    assert "'t'" not in repr(parsed)


def test_mounted_credentials_are_read(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("https://mounted.example.com")
    (tmp_path / "token").write_text("mounted\n")
    parsed = configuration([], {}, tmp_path)
    assert (parsed.server, parsed.read_token()) == ("https://mounted.example.com", "mounted")


@pytest.mark.parametrize(
    ("arguments", "changes", "setting"),
    [
        ([], {"CATTLE_SERVER": ""}, "CATTLE_SERVER"),
        ([], {"CATTLE_SERVER": "http://m.example.com"}, "CATTLE_SERVER"),
        ([], {"CATTLE_TOKEN": ""}, "CATTLE_TOKEN"),
        ([], {"CATTLE_CA_CHECKSUM": "abc"}, "CATTLE_CA_CHECKSUM"),
        (["--allow", "everything"], {}, "--allow"),
    ],
)
def test_invalid_settings_are_named(
    tmp_path: Path, arguments: list[str], changes: dict[str, str], setting: str
) -> None:
    with pytest.raises(ConfigurationError, match=setting):
        configuration(arguments, GOOD | changes, tmp_path)


# --- helpers --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def echo() -> AsyncIterator[str]:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(100))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def echoed(manager: Manager, address: str, proto: str = "tcp") -> bytes:
    stream = manager.registry.dial(MEADOW, proto, address)
    await stream.send(b"hello")
    return bytes(await stream.receive())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


async def health_of(host: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    status = await reader.readline()
    writer.close()
    return status.strip()
