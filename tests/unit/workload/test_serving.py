"""Served APIs of workload clusters: over TLS, on their own ports, with injected faults."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from herder.api.capi.kinds import NODE, SECRET
from herder.api.inmemory.names import SERVE_WORKLOAD, SET_WORKLOAD_FAULT, STOP_WORKLOAD
from herder.app.workload_clusters import connect
from herder.effects.client_kubeconfig import Kubeconfigs
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound, ServiceUnavailable, StatusError
from herder.engine.meta.kinds import GroupVersionResource
from herder.engine.wire import Request
from herder.workload.authorities import AuthorityError, usable
from herder.workload.serving import Workloads
from tests.unit.workload.clusters import NAMESPACE, clock, create_authority, management, workload_client

CLUSTER_ARGUMENTS = {"namespace": NAMESPACE, "cluster": "c"}
A_NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
PATIENCE = 0.3


class Harness:
    """A management cluster, the workload server, and the cluster `c`."""

    def __init__(self, client: Client, data_dir: Path | None) -> None:
        self.client = client
        self.data_dir = data_dir
        self.start()

    def start(self) -> None:
        self.workloads = Workloads(self.client, clock=clock, data_dir=self.data_dir)

    async def restart(self) -> None:
        await self.workloads.close()
        self.start()

    async def perform(self, effect: str, **arguments: Any) -> Any:
        return await self.workloads.performers()[effect](CLUSTER_ARGUMENTS | arguments)

    async def serve(self, port: int = 0, fault: str = "") -> dict[str, Any]:
        served: dict[str, Any] = await self.perform(SERVE_WORKLOAD, port=port, fault=fault)
        return served


@contextlib.asynccontextmanager
async def start_harness(data_dir: Path | None = None) -> AsyncIterator[tuple[Harness, dict[str, str]]]:
    async with management() as client:
        authority = await create_authority(client, "c")
        harness = Harness(client, data_dir)
        try:
            yield harness, authority
        finally:
            await harness.workloads.close()


@contextlib.asynccontextmanager
async def connected_client(authority: dict[str, str], served: dict[str, Any]) -> AsyncIterator[Client]:
    client = workload_client(authority, served)
    try:
        yield client
    finally:
        await client.close()


async def nodes(client: Client) -> list[str]:
    return [node["metadata"]["name"] for node in (await client.list(NODE.resource)).items]


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def within_time() -> None:
        async with asyncio.timeout(30):
            await test()

    asyncio.run(within_time())


def test_a_client_that_trusts_the_ca_can_use_the_cluster() -> None:
    async def test() -> None:
        async with start_harness() as (harness, authority):
            served = await harness.serve()
            async with connected_client(authority, served) as client:
                assert await nodes(client) == []
                await client.create(NODE.resource, A_NODE)
                assert await nodes(client) == ["n"]

    run(test)


def test_the_kubeconfig_secret_connects_to_the_cluster() -> None:
    async def test() -> None:
        async with start_harness() as (harness, _):
            served = await harness.serve()
            server = f"https://{served['host']}:{served['port']}"
            value = await Kubeconfigs(harness.client, clock).make(CLUSTER_ARGUMENTS | {"server": server})
            secret = {
                "metadata": {"name": "c-kubeconfig", "namespace": NAMESPACE},
                "data": {"value": value["kubeconfig"]},
            }
            kind = {"apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret"}
            await harness.client.create(SECRET.resource, kind | secret, namespace=NAMESPACE)
            client = await connect(harness.client, f"{NAMESPACE}/c", harness.workloads.serves)
            assert await nodes(client) == []
            await client.close()

    run(test)


def test_serving_is_idempotent() -> None:
    async def test() -> None:
        async with start_harness() as (harness, _):
            assert await harness.serve() == await harness.serve()

    run(test)


def test_clusters_are_isolated_from_each_other() -> None:
    async def test() -> None:
        async with start_harness() as (harness, authority):
            other_authority = await create_authority(harness.client, "other")
            served, other = (
                await harness.serve(),
                await harness.perform(SERVE_WORKLOAD, cluster="other", port=0, fault=""),
            )
            assert served["port"] != other["port"]
            async with (
                connected_client(authority, served) as client,
                connected_client(other_authority, other) as neighbour,
            ):
                await client.create(NODE.resource, A_NODE)
                assert await nodes(neighbour) == []
            async with connected_client(authority, other) as untrusted:
                with pytest.raises(Exception, match="certificate"):
                    await nodes(untrusted)

    run(test)


def test_a_kubeconfig_stays_valid_after_a_restart() -> None:
    async def test() -> None:
        async with start_harness() as (harness, authority):
            served = await harness.serve()
            await harness.restart()
            assert await harness.serve(port=served["port"]) == served
            async with connected_client(authority, served) as client:
                assert await nodes(client) == []

    run(test)


def test_a_watch_from_before_a_restart_without_data_fails_with_410() -> None:
    async def test() -> None:
        async with start_harness() as (harness, authority):
            served = await harness.serve()
            async with connected_client(authority, served) as client:
                await client.create(NODE.resource, A_NODE)
                revision = (await client.list(NODE.resource)).resource_version
            await harness.restart()
            async with connected_client(authority, await harness.serve(port=served["port"])) as client:
                with pytest.raises(StatusError) as error:
                    async for _ in client.watch(NODE.resource, resource_version=revision):
                        pass
                assert error.value.code == 410

    run(test)


def test_a_cluster_with_a_directory_keeps_its_data_until_it_is_stopped(tmp_path: Path) -> None:
    async def test() -> None:
        async with start_harness(tmp_path) as (harness, authority):
            served = await harness.serve()
            async with connected_client(authority, served) as client:
                await client.create(NODE.resource, A_NODE)
            await harness.restart()
            async with connected_client(authority, await harness.serve(port=served["port"])) as client:
                assert await nodes(client) == ["n"]
            await harness.perform(STOP_WORKLOAD)
            assert list(tmp_path.iterdir()) == []

    run(test)


def test_a_stopped_cluster_is_unavailable_and_stopping_is_idempotent() -> None:
    async def test() -> None:
        async with start_harness() as (harness, authority):
            served = await harness.serve()
            await harness.perform(STOP_WORKLOAD)
            await harness.perform(STOP_WORKLOAD)
            async with connected_client(authority, served) as client:
                with pytest.raises(ServiceUnavailable):
                    await nodes(client)

    run(test)


def test_a_port_in_use_is_reported() -> None:
    async def test() -> None:
        async with start_harness() as (harness, _):
            taken = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
            port = taken.sockets[0].getsockname()[1]
            with pytest.raises(OSError, match=f"port {port} of 127.0.0.1"):
                await harness.serve(port=port)
            taken.close()

    run(test)


def test_faults_are_injected_and_removed() -> None:
    async def test() -> None:
        async with start_harness() as (harness, authority):
            served = await harness.serve()
            async with connected_client(authority, served) as client:
                await client.create(NODE.resource, A_NODE)
                await harness.perform(SET_WORKLOAD_FAULT, fault="refuse")
                with pytest.raises(ServiceUnavailable):
                    await nodes(client)
                await harness.perform(SET_WORKLOAD_FAULT, fault="hang")
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(nodes(client), PATIENCE)
                await harness.perform(SET_WORKLOAD_FAULT, fault="")
                assert await nodes(client) == ["n"]

    run(test)


def test_slow_responses_are_delayed() -> None:
    async def test() -> None:
        async with start_harness() as (harness, authority):
            served = await harness.serve(fault=f"slow={PATIENCE}")
            assert served["fault"] == f"slow={PATIENCE}"
            async with connected_client(authority, served) as client:
                started = asyncio.get_running_loop().time()
                assert await nodes(client) == []
                assert asyncio.get_running_loop().time() - started >= PATIENCE

    run(test)


def test_a_fault_ends_open_watches() -> None:
    async def test() -> None:
        async with start_harness() as (harness, authority):
            served = await harness.serve()
            async with connected_client(authority, served) as client:
                opened = asyncio.Event()

                async def watch() -> None:
                    async for _ in client.watch(NODE.resource, opened=opened.set):
                        pass

                watching = asyncio.ensure_future(watch())
                await opened.wait()
                await harness.perform(SET_WORKLOAD_FAULT, fault="hang")
                await asyncio.wait([watching], timeout=5)
                assert watching.done()
                watching.exception()

    run(test)


def test_serving_needs_the_ca() -> None:
    async def test() -> None:
        async with management() as client:
            harness = Harness(client, None)
            with pytest.raises(NotFound, match="c-ca"):
                await harness.serve()

    run(test)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tls.crt": ""}, "tls.crt: not a PEM certificate"),
        ({"tls.key": ""}, "tls.key: not a PEM private key without a password"),
        ({"tls.key": base64.b64encode(b"secret words").decode()}, "tls.key: not a PEM private key without a password"),
        ({"tls.key": "~"}, "tls.key: not a PEM private key without a password"),
    ],
)
def test_an_invalid_ca_is_reported_without_its_content(change: dict[str, str], message: str) -> None:
    async def test() -> None:
        async with management() as client:
            data = await create_authority(client, "c") | change
            with pytest.raises(AuthorityError) as error:
                usable(data, "Secret default/c-ca")
            assert str(error.value) == f"Secret default/c-ca: {message}"

    run(test)


def test_a_ca_with_the_key_of_another_is_rejected() -> None:
    async def test() -> None:
        async with management() as client:
            authority, other = await create_authority(client, "c"), await create_authority(client, "d")
            with pytest.raises(AuthorityError, match="does not belong"):
                usable(authority | {"tls.key": other["tls.key"]}, "here")
            assert (await client.get(SECRET.resource, "c-ca", namespace=NAMESPACE))["data"] == authority

    run(test)


def test_a_port_is_reserved_for_its_cluster_across_restarts(tmp_path: Path) -> None:
    """Users choose the port of their own cluster. After a restart, the first cluster must not take another's port."""

    async def test() -> None:
        async with start_harness(tmp_path) as (harness, _):
            port = (await harness.serve())["port"]
            await create_authority(harness.client, "other")
            await harness.restart()
            with pytest.raises(OSError, match=f"port {port} belongs to cluster {NAMESPACE}/c"):
                await harness.perform(SERVE_WORKLOAD, cluster="other", port=port, fault="")
            assert (await harness.serve(port))["port"] == port
            await harness.perform(STOP_WORKLOAD)
            assert (await harness.perform(SERVE_WORKLOAD, cluster="other", port=port, fault=""))["port"] == port

    run(test)


HOOK = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingWebhookConfiguration",
    "metadata": {"name": "hook"},
    "webhooks": [
        {
            "name": "hook.example.com",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
            ],
        }
    ],
}
HOOKS = GroupVersionResource("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations")
CONFIG_MAPS, PODS = GroupVersionResource("", "v1", "configmaps"), GroupVersionResource("", "v1", "pods")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "169.254.169.254"])
def test_webhooks_of_a_workload_cluster_cannot_reach_the_managers_host(host: str) -> None:
    """Users are administrators of the cluster, and the manager sends the requests."""

    async def test() -> None:
        async with (
            start_harness() as (harness, authority),
            connected_client(authority, await harness.serve()) as client,
        ):
            hook = copy.deepcopy(HOOK)
            hook["webhooks"][0]["clientConfig"] = {"url": f"https://{host}:1/"}  # type: ignore[index]
            await client.create(HOOKS, hook)
            config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
            with pytest.raises(StatusError, match="is not allowed for a workload cluster"):
                await client.create(CONFIG_MAPS, config, namespace="default")

    run(test)


def test_pod_logs_of_a_workload_cluster_cannot_reach_the_managers_host() -> None:
    async def test() -> None:
        async with (
            start_harness() as (harness, authority),
            connected_client(authority, await harness.serve()) as client,
        ):
            status = {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}
            await client.create(NODE.resource, A_NODE | {"status": status})
            spec = {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
            await client.create(PODS, pod, namespace="default")
            response = await client.transport.send(Request("GET", "/api/v1/namespaces/default/pods/p/log"))
            assert response.status == 500
            assert b"address 127.0.0.1 is not allowed for a workload cluster" in response.body

    run(test)
