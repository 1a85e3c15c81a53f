"""The runner in one process: access to logs, pod binding, and hosts without isolation."""

from __future__ import annotations

import asyncio
import os
import ssl
import tempfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest

from herder.engine.meta.kinds import Object
from herder.engine.runner import runner as runner_module
from herder.engine.runner.binding import selects_node
from herder.engine.runner.isolation import HostUser
from herder.engine.runner.kubelet import options_from
from herder.engine.runner.node import node_labels
from herder.engine.runner.runner import Runner, RunnerError
from herder.engine.wire import Query
from tests.unit.engine.runner.engines import JOBS, NODES, PODS, finished, job
from tests.unit.engine.runner.inprocess import Served, running, served, until, wall_clock


@pytest.fixture
async def server() -> AsyncIterator[Served]:
    async with served() as found:
        yield found


def client_context(server: Served, name: str | None, groups: tuple[str, ...] = ()) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if name is not None:
        pair = server.pki.client_certificate(name, groups, now=datetime.now(UTC))
        with tempfile.NamedTemporaryFile(suffix=".pem") as file:
            file.write(pair.certificate_pem + pair.key_pem)
            file.flush()
            context.load_cert_chain(file.name)
    return context


async def test_only_authorized_users_can_read_logs(server: Served, tmp_path: Path) -> None:
    async with running(server, tmp_path / "work"), aiohttp.ClientSession() as session:
        await server.client.create(JOBS, job("said", "echo private"), namespace="default")
        await until(server, JOBS, "said", finished)
        (pod,) = (await server.client.list(PODS, namespace="default")).items
        node = await server.client.get(NODES, "herder-runner")
        port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        url = f"https://127.0.0.1:{port}/containerLogs/default/{pod['metadata']['name']}/main"
        with pytest.raises((aiohttp.ClientError, OSError)):
            await session.get(url, ssl=client_context(server, None))
        async with session.get(url, ssl=client_context(server, "somebody")) as answer:
            assert answer.status == 403
        trusted = client_context(server, "api-server", ("system:masters",))
        async with session.get(url, ssl=trusted) as answer:
            assert (answer.status, await answer.text()) == (200, "private\n")
        for bad, status in ((url + "?tailLines=x", 400), (url + "2", 400), (url + "?previous=true", 400)):
            async with session.get(bad, ssl=trusted) as answer:
                assert answer.status == status
        async with session.get(f"https://127.0.0.1:{port}/exec/default/x/y", ssl=trusted) as answer:
            assert answer.status == 404


async def test_a_log_file_is_closed_when_its_reader_disconnects(server: Served, tmp_path: Path) -> None:
    def held() -> bool:
        links = Path("/proc/self/fd").iterdir()
        return any(os.path.realpath(link).startswith(str(tmp_path / "work" / "pods")) for link in links)

    async with running(server, tmp_path / "work"), aiohttp.ClientSession() as session:
        await server.client.create(JOBS, job("talks", "echo first; sleep 60"), namespace="default")
        await until(server, JOBS, "talks", lambda obj: obj["status"].get("ready"))
        (pod,) = (await server.client.list(PODS, namespace="default")).items
        node = await server.client.get(NODES, "herder-runner")
        port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        url = f"https://127.0.0.1:{port}/containerLogs/default/{pod['metadata']['name']}/main?follow=true"
        answer = await session.get(url, ssl=client_context(server, "api-server", ("system:masters",)))
        assert await answer.content.readline() == b"first\n"
        assert held()
        answer.close()
        async with asyncio.timeout(10):
            while held():
                await asyncio.sleep(0.01)
        await server.client.delete(JOBS, "talks", namespace="default")
        await server.client.delete(PODS, pod["metadata"]["name"], namespace="default", grace_seconds=1)
        async with asyncio.timeout(30):
            while (await server.client.list(PODS, namespace="default")).items:
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("text", ["sinceSeconds=99999999999", "sinceSeconds=99999999999999999999"])
def test_logs_since_a_time_before_the_calendar_are_complete(text: str) -> None:
    assert options_from(Query.parse(text), wall_clock()).since is None


@pytest.mark.parametrize("text", ["tailLines=", "tailLines=-1", "limitBytes=%C2%B2", "sinceTime=yesterday"])
def test_invalid_log_options_are_rejected_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=text.partition("=")[0]):
        options_from(Query.parse(text), wall_clock())


async def test_a_work_directory_has_one_runner(server: Served, tmp_path: Path) -> None:
    async with running(server, tmp_path / "work"):
        second = Runner(server.client, work_dir=tmp_path / "work", commands=lambda _image: None, clock=wall_clock)
        with pytest.raises(RunnerError, match="is in use by another runner"):
            await second.run()


async def test_a_deleted_node_is_registered_again(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("herder.engine.runner.node.RENEW_EVERY", 0.05)
    monkeypatch.setattr("herder.engine.runner.node.STATUS_EVERY", 0.1)
    async with running(server, tmp_path / "work"):
        first = await server.client.get(NODES, "herder-runner")
        await server.client.delete(NODES, "herder-runner")
        again = await until(server, NODES, "herder-runner", lambda node: node["status"].get("addresses"), "")
        assert again["metadata"]["uid"] != first["metadata"]["uid"]


async def test_no_pod_runs_without_mount_isolation(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def detect_no_isolation(*_: object) -> None:
        return None

    monkeypatch.setattr(runner_module, "detect", detect_no_isolation)
    runner = Runner(server.client, work_dir=tmp_path / "work", commands=lambda _image: None, clock=wall_clock)
    with pytest.raises(RunnerError, match="pods could read the files of the manager"):
        await runner.run()


async def test_a_separate_uid_is_required_to_run_pods_of_users(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without root, pods have the uid of the manager."""
    monkeypatch.setattr(HostUser, "named", lambda _name: None)
    async with running(server, tmp_path / "work", all_pods=True):
        await server.client.create(JOBS, job("of-a-user", "id"), namespace="default")
        assert finished(await until(server, JOBS, "of-a-user", finished)) == "Failed"
        (pod,) = (await server.client.list(PODS, namespace="default")).items
        assert pod["status"]["reason"] == "PodNotApproved"


TOLERATION = {"key": "herder.io/runner", "operator": "Exists"}


@pytest.mark.parametrize(
    ("spec", "taken"),
    [
        ({"nodeSelector": {"herder.io/runner": "true"}, "tolerations": [TOLERATION]}, True),
        ({"nodeSelector": {"herder.io/runner": "true"}, "tolerations": [{"operator": "Exists"}]}, True),
        (
            {
                "nodeSelector": {"herder.io/runner": "true", "kubernetes.io/os": "linux"},
                "tolerations": [{"key": "herder.io/runner", "value": "true", "effect": "NoSchedule"}],
            },
            True,
        ),
        ({"nodeSelector": {"herder.io/runner": "true"}}, False),
        ({"nodeSelector": {"herder.io/runner": "true"}, "tolerations": [{**TOLERATION, "effect": "NoExecute"}]}, False),
        ({"nodeSelector": {"herder.io/runner": "true", "zone": "b"}, "tolerations": [TOLERATION]}, False),
        ({"tolerations": [TOLERATION]}, False),
        (
            {
                "nodeSelector": {"herder.io/runner": "true"},
                "tolerations": [TOLERATION],
                "schedulingGates": [{"name": "g"}],
            },
            False,
        ),
    ],
)
def test_pods_are_bound_if_they_select_this_node_and_tolerate_its_taint(spec: Object, taken: bool) -> None:
    assert selects_node({"metadata": {"name": "p"}, "spec": spec}, node_labels("herder-runner")) is taken
