"""Workload clusters' APIs, for real: over TLS, on their own ports, with the faults that are asked for."""

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
from tests.unit.workload.clusters import NAMESPACE, clock, management, with_authority, workload_client

WHICH = {"namespace": NAMESPACE, "cluster": "c"}
A_NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
PATIENCE = 0.3


class Bench:
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
        return await self.workloads.performers()[effect](WHICH | arguments)

    async def serve(self, port: int = 0, fault: str = "") -> dict[str, Any]:
        served: dict[str, Any] = await self.perform(SERVE_WORKLOAD, port=port, fault=fault)
        return served


@contextlib.asynccontextmanager
async def bench(data_dir: Path | None = None) -> AsyncIterator[tuple[Bench, dict[str, str]]]:
    async with management() as client:
        authority = await with_authority(client, "c")
        made = Bench(client, data_dir)
        try:
            yield made, authority
        finally:
            await made.workloads.close()


@contextlib.asynccontextmanager
async def reaching(authority: dict[str, str], served: dict[str, Any]) -> AsyncIterator[Client]:
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


def test_a_cluster_answers_to_who_trusts_its_authority() -> None:
    async def test() -> None:
        async with bench() as (made, authority):
            served = await made.serve()
            async with reaching(authority, served) as client:
                assert await nodes(client) == []
                await client.create(NODE.resource, A_NODE)
                assert await nodes(client) == ["n"]

    run(test)


def test_the_kubeconfig_of_the_secret_reaches_it() -> None:
    async def test() -> None:
        async with bench() as (made, _):
            served = await made.serve()
            server = f"https://{served['host']}:{served['port']}"
            value = await Kubeconfigs(made.client, clock).make(WHICH | {"server": server})
            secret = {
                "metadata": {"name": "c-kubeconfig", "namespace": NAMESPACE},
                "data": {"value": value["kubeconfig"]},
            }
            kind = {"apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret"}
            await made.client.create(SECRET.resource, kind | secret, namespace=NAMESPACE)
            client = await connect(made.client, f"{NAMESPACE}/c", made.workloads.serves)
            assert await nodes(client) == []
            await client.close()

    run(test)


def test_asked_for_twice_it_is_served_once() -> None:
    async def test() -> None:
        async with bench() as (made, _):
            assert await made.serve() == await made.serve()

    run(test)


def test_clusters_know_nothing_of_each_other() -> None:
    async def test() -> None:
        async with bench() as (made, authority):
            other_authority = await with_authority(made.client, "other")
            served, other = await made.serve(), await made.perform(SERVE_WORKLOAD, cluster="other", port=0, fault="")
            assert served["port"] != other["port"]
            async with reaching(authority, served) as client, reaching(other_authority, other) as neighbour:
                await client.create(NODE.resource, A_NODE)
                assert await nodes(neighbour) == []
            async with reaching(authority, other) as stranger:
                with pytest.raises(Exception, match="certificate"):
                    await nodes(stranger)

    run(test)


def test_after_a_restart_the_same_kubeconfig_reaches_it() -> None:
    async def test() -> None:
        async with bench() as (made, authority):
            served = await made.serve()
            await made.restart()
            assert await made.serve(port=served["port"]) == served
            async with reaching(authority, served) as client:
                assert await nodes(client) == []

    run(test)


def test_who_watched_a_cluster_that_has_forgotten_all_is_told_to_list_anew() -> None:
    async def test() -> None:
        async with bench() as (made, authority):
            served = await made.serve()
            async with reaching(authority, served) as client:
                await client.create(NODE.resource, A_NODE)
                seen = (await client.list(NODE.resource)).resource_version
            await made.restart()
            async with reaching(authority, await made.serve(port=served["port"])) as client:
                with pytest.raises(StatusError) as error:
                    async for _ in client.watch(NODE.resource, resource_version=seen):
                        pass
                assert error.value.code == 410

    run(test)


def test_with_a_directory_a_cluster_keeps_what_it_stored_until_it_is_stopped(tmp_path: Path) -> None:
    async def test() -> None:
        async with bench(tmp_path) as (made, authority):
            served = await made.serve()
            async with reaching(authority, served) as client:
                await client.create(NODE.resource, A_NODE)
            await made.restart()
            async with reaching(authority, await made.serve(port=served["port"])) as client:
                assert await nodes(client) == ["n"]
            await made.perform(STOP_WORKLOAD)
            assert list(tmp_path.iterdir()) == []

    run(test)


def test_a_stopped_cluster_answers_no_more_and_may_be_stopped_again() -> None:
    async def test() -> None:
        async with bench() as (made, authority):
            served = await made.serve()
            await made.perform(STOP_WORKLOAD)
            await made.perform(STOP_WORKLOAD)
            async with reaching(authority, served) as client:
                with pytest.raises(ServiceUnavailable):
                    await nodes(client)

    run(test)


def test_a_port_that_is_taken_is_named() -> None:
    async def test() -> None:
        async with bench() as (made, _):
            taken = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
            port = taken.sockets[0].getsockname()[1]
            with pytest.raises(OSError, match=f"port {port} of 127.0.0.1"):
                await made.serve(port=port)
            taken.close()

    run(test)


def test_refusing_hanging_and_healing() -> None:
    async def test() -> None:
        async with bench() as (made, authority):
            served = await made.serve()
            async with reaching(authority, served) as client:
                await client.create(NODE.resource, A_NODE)
                await made.perform(SET_WORKLOAD_FAULT, fault="refuse")
                with pytest.raises(ServiceUnavailable):
                    await nodes(client)
                await made.perform(SET_WORKLOAD_FAULT, fault="hang")
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(nodes(client), PATIENCE)
                await made.perform(SET_WORKLOAD_FAULT, fault="")
                assert await nodes(client) == ["n"]

    run(test)


def test_slow_answers_come_late() -> None:
    async def test() -> None:
        async with bench() as (made, authority):
            served = await made.serve(fault=f"slow={PATIENCE}")
            assert served["fault"] == f"slow={PATIENCE}"
            async with reaching(authority, served) as client:
                started = asyncio.get_running_loop().time()
                assert await nodes(client) == []
                assert asyncio.get_running_loop().time() - started >= PATIENCE

    run(test)


def test_a_fault_ends_watches_that_are_open() -> None:
    async def test() -> None:
        async with bench() as (made, authority):
            served = await made.serve()
            async with reaching(authority, served) as client:
                opened = asyncio.Event()

                async def watch() -> None:
                    async for _ in client.watch(NODE.resource, opened=opened.set):
                        pass

                watching = asyncio.ensure_future(watch())
                await opened.wait()
                await made.perform(SET_WORKLOAD_FAULT, fault="hang")
                await asyncio.wait([watching], timeout=5)
                assert watching.done()
                watching.exception()

    run(test)


def test_serving_waits_for_the_authority() -> None:
    async def test() -> None:
        async with management() as client:
            made = Bench(client, None)
            with pytest.raises(NotFound, match="c-ca"):
                await made.serve()

    run(test)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"tls.crt": ""}, "tls.crt: not a PEM certificate"),
        ({"tls.key": ""}, "tls.key: not a PEM private key without a password"),
        ({"tls.key": base64.b64encode(b"secret words").decode()}, "tls.key: not a PEM private key without a password"),
        ({"tls.key": "~"}, "tls.key: not a PEM private key without a password"),
    ],
)
def test_an_authority_that_cannot_be_used_is_named_without_its_content(change: dict[str, str], told: str) -> None:
    async def test() -> None:
        async with management() as client:
            data = await with_authority(client, "c") | change
            with pytest.raises(AuthorityError) as error:
                usable(data, "Secret default/c-ca")
            assert str(error.value) == f"Secret default/c-ca: {told}"

    run(test)


def test_an_authority_whose_key_is_anothers_is_refused() -> None:
    async def test() -> None:
        async with management() as client:
            mine, yours = await with_authority(client, "c"), await with_authority(client, "d")
            with pytest.raises(AuthorityError, match="does not belong"):
                usable(mine | {"tls.key": yours["tls.key"]}, "here")
            assert (await client.get(SECRET.resource, "c-ca", namespace=NAMESPACE))["data"] == mine

    run(test)


def test_a_port_stays_its_clusters_while_the_manager_restarts(tmp_path: Path) -> None:
    """Users choose the port of their own cluster. The first to be served after a restart must not get another's."""

    async def test() -> None:
        async with bench(tmp_path) as (made, _):
            port = (await made.serve())["port"]
            await with_authority(made.client, "other")
            await made.restart()
            with pytest.raises(OSError, match=f"port {port} belongs to cluster {NAMESPACE}/c"):
                await made.perform(SERVE_WORKLOAD, cluster="other", port=port, fault="")
            assert (await made.serve(port))["port"] == port
            await made.perform(STOP_WORKLOAD)
            assert (await made.perform(SERVE_WORKLOAD, cluster="other", port=port, fault=""))["port"] == port

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
def test_its_users_reach_nothing_of_the_managers_host_by_webhooks(host: str) -> None:
    """They are administrators there, and the manager makes the calls."""

    async def test() -> None:
        async with bench() as (made, authority), reaching(authority, await made.serve()) as client:
            hook = copy.deepcopy(HOOK)
            hook["webhooks"][0]["clientConfig"] = {"url": f"https://{host}:1/"}  # type: ignore[index]
            await client.create(HOOKS, hook)
            config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
            with pytest.raises(StatusError, match="is not allowed for a workload cluster"):
                await client.create(CONFIG_MAPS, config, namespace="default")

    run(test)


def test_its_users_reach_nothing_of_the_managers_host_by_logs_of_pods() -> None:
    async def test() -> None:
        async with bench() as (made, authority), reaching(authority, await made.serve()) as client:
            status = {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}
            await client.create(NODE.resource, A_NODE | {"status": status})
            spec = {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
            await client.create(PODS, pod, namespace="default")
            answer = await client.transport.send(Request("GET", "/api/v1/namespaces/default/pods/p/log"))
            assert answer.status == 500
            assert b"address 127.0.0.1 is not allowed for a workload cluster" in answer.body

    run(test)
