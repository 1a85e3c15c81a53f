"""A node runs a limited number of pods at once, and the others wait. The pods share a host directory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from herder.engine.meta.kinds import Object
from herder.engine.runner.concurrency import PodSlots
from tests.unit.engine.runner.engines import JOBS, NODES, PODS, finished, job
from tests.unit.engine.runner.inprocess import Served, gone, running, served, until

WAITS = "node is at its limit of"


@pytest.fixture
async def server() -> AsyncIterator[Served]:
    async with served() as found:
        yield found


@pytest.fixture
def shared() -> Iterator[Path]:
    with TemporaryDirectory(dir="/var/tmp", prefix="turns-") as name:
        place = Path(name) / "shared"
        place.mkdir()
        place.chmod(0o777)
        yield place


async def start(server: Served, name: str, shared: Path, script: str) -> None:
    wanted = job(
        name,
        f"cd /shared && {script}",
        pod={"volumes": [{"name": "shared", "hostPath": {"path": str(shared), "type": "Directory"}}]},
        container={"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]},
    )
    await server.client.create(JOBS, wanted, namespace="default")


async def pod_of(server: Served, name: str) -> Object:
    await until(server, JOBS, name, lambda found: found["status"].get("active"))
    labels = f"batch.kubernetes.io/job-name={name}"
    (pod,) = (await server.client.list(PODS, namespace="default", labels=labels)).items
    return pod


async def wait_until_running(server: Served, name: str) -> None:
    await until(server, PODS, (await pod_of(server, name))["metadata"]["name"], _is_running)


async def wait_until_queued(server: Served, name: str) -> str:
    pod: str = (await pod_of(server, name))["metadata"]["name"]
    await until(server, PODS, pod, lambda found: WAITS in str(found["status"].get("containerStatuses")))
    return pod


def _is_running(pod: Object) -> bool:
    return any("running" in one["state"] for one in pod["status"].get("containerStatuses") or ())


BUSY = "mkdir {0} && until [ -e release ]; do sleep 0.02; done; rmdir {0}"


async def test_pods_over_the_limit_wait_and_then_run(server: Served, shared: Path) -> None:
    async with running(server, shared.parent / "work", max_pods=2, host_paths=(shared,)):
        node = await server.client.get(NODES, "herder-runner")
        assert node["status"]["capacity"]["pods"] == "2"
        for name in ("first", "second"):
            await start(server, name, shared, BUSY.format(name))
            await wait_until_running(server, name)
        for name in ("third", "unwanted", "fourth"):
            await start(server, name, shared, f"! (test -e first && test -e second) && mkdir {name}")
        await wait_until_queued(server, "third")
        unwanted = await wait_until_queued(server, "unwanted")
        await server.client.delete(JOBS, "unwanted", namespace="default", propagation="Background")
        await gone(server, PODS, unwanted)
        (shared / "release").touch()
        for name in ("first", "second", "third", "fourth"):
            assert finished(await until(server, JOBS, name, finished)) == "Complete"
    assert not (shared / "unwanted").exists()


async def test_running_pods_keep_their_slot_after_a_runner_restart(server: Served, shared: Path) -> None:
    """The waiting pod is listed first, because pods are listed by name."""
    work = shared.parent / "work"
    async with running(server, work, max_pods=1, host_paths=(shared,)):
        await start(server, "z", shared, BUSY.format("busy"))
        await wait_until_running(server, "z")
        await start(server, "a", shared, "test ! -e busy")
        waiting = await wait_until_queued(server, "a")
    async with running(server, work, max_pods=1, host_paths=(shared,)):
        assert not _is_running(await server.client.get(PODS, waiting, namespace="default"))
        (shared / "release").touch()
        for name in ("z", "a"):
            assert finished(await until(server, JOBS, name, finished)) == "Complete"


async def test_slots_are_granted_in_order_and_skip_cancelled_waiters() -> None:
    slots = PodSlots(1)
    first, second, third = slots.acquire(), slots.acquire(), slots.acquire()
    assert [slot.done() for slot in (first, second, third)] == [True, False, False]
    second.cancel()
    slots.release()
    assert third.done()


async def test_an_exceeded_limit_is_compensated() -> None:
    slots = PodSlots(1)
    for _ in range(2):
        assert slots.acquire_now().done()
    waiting = slots.acquire()
    slots.release()
    assert not waiting.done()
    slots.release()
    assert waiting.done()
