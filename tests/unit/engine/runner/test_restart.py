"""After the runner is killed, containers keep running, and none is run twice silently."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.engine.runner.engines import JOBS, PODS, Engine, finished, job, terminated


class HostPipes:
    """A host directory with named pipes, into which containers can write; their /tmp is private."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pipes: dict[str, int] = {}

    def pipe(self, name: str) -> Path:
        place = self.path / name
        os.mkfifo(place)
        place.chmod(0o666)
        self._pipes[name] = os.open(place, os.O_RDWR | os.O_NONBLOCK)
        return place

    def read_new(self, name: str) -> str:
        """Return what was written since the last call."""
        try:
            return os.read(self._pipes[name], 65536).decode()
        except BlockingIOError:
            return ""

    async def until_written(self, name: str) -> None:
        async with asyncio.timeout(60):
            while not self.read_new(name):
                await asyncio.sleep(0.05)

    def close(self) -> None:
        for descriptor in self._pipes.values():
            os.close(descriptor)


@pytest.fixture
def host_pipes() -> Iterator[HostPipes]:
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="runner-test-") as name:
        found = HostPipes(Path(name))
        found.path.chmod(0o755)
        yield found
        found.close()


async def test_a_running_job_survives_a_killed_runner_and_runs_once(engine: Engine, host_pipes: HostPipes) -> None:
    wait = "until [ -e gate ]; do sleep 0.05; done"
    script = f"cd {host_pipes.path}; echo ran >> {host_pipes.pipe('count')}; echo up; {wait}; echo through; exit 5"
    await engine.client.create(JOBS, job("survivor", script), namespace="default")
    await engine.until(JOBS, "survivor", lambda one: one["status"].get("ready") == 1)
    engine.crash()
    engine.restart()
    await engine.reconnect()
    await asyncio.sleep(1)
    (host_pipes.path / "gate").touch()
    done = await engine.until(JOBS, "survivor", finished)
    assert (finished(done), done["status"]["failed"]) == ("Failed", 1)
    (pod,) = await engine.pods_of("survivor")
    assert terminated(pod)["exitCode"] == 5
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    assert await engine.kubectl_in_thread("logs", "job/survivor") == "up\nthrough\n"
    assert host_pipes.read_new("count") == "ran\n"


async def test_a_job_that_ended_without_a_runner_is_reported_correctly(engine: Engine, host_pipes: HostPipes) -> None:
    wait = "until [ -e gate ]; do sleep 0.05; done"
    script = f"cd {host_pipes.path}; echo ran >> {host_pipes.pipe('count')}; {wait}; printf late >/dev/termination-log"
    await engine.client.create(JOBS, job("unwatched", script), namespace="default")
    await engine.until(JOBS, "unwatched", lambda one: one["status"].get("ready") == 1)
    engine.crash()
    (host_pipes.path / "gate").touch()
    await asyncio.sleep(0.5)
    engine.restart()
    await engine.reconnect()
    done = await engine.until(JOBS, "unwatched", finished)
    assert (finished(done), done["status"]["succeeded"]) == ("Complete", 1)
    (pod,) = await engine.pods_of("unwatched")
    assert terminated(pod)["message"] == "late"
    assert host_pipes.read_new("count") == "ran\n"


async def test_a_container_whose_shim_was_killed_fails_and_its_processes_are_stopped(
    engine: Engine, host_pipes: HostPipes
) -> None:
    alive, count = host_pipes.pipe("alive"), host_pipes.pipe("count")
    script = f"echo ran >> {count}; while :; do echo >> {alive}; sleep 0.05; done"
    await engine.client.create(JOBS, job("orphan", script), namespace="default")
    await engine.until(JOBS, "orphan", lambda one: one["status"].get("ready") == 1)
    await host_pipes.until_written("alive")
    (pod,) = await engine.pods_of("orphan")
    engine.crash()
    running = next((engine.work_dir / "pods" / pod["metadata"]["uid"]).glob("containers/main/0/running"))
    os.kill(json.loads(running.read_text())["shim"], signal.SIGKILL)
    engine.restart()
    await engine.reconnect()
    done = await engine.until(JOBS, "orphan", finished)
    assert finished(done) == "Failed"
    (pod,) = await engine.pods_of("orphan")
    assert (terminated(pod)["exitCode"], terminated(pod)["reason"]) == (137, "ContainerStatusUnknown")
    assert host_pipes.read_new("count") == "ran\n"
    host_pipes.read_new("alive")
    await asyncio.sleep(0.5)
    assert not host_pipes.read_new("alive")


# The embedded API server stops with the runner, so nothing can be deleted meanwhile.
@pytest.mark.parametrize("engine", ["real"], indirect=True)
async def test_a_pod_deleted_without_a_runner_is_stopped_by_the_next_runner(
    engine: Engine, host_pipes: HostPipes
) -> None:
    script = f"while :; do echo >> {host_pipes.pipe('alive')}; sleep 0.05; done"
    await engine.client.create(JOBS, job("swept", script), namespace="default")
    await engine.until(JOBS, "swept", lambda one: one["status"].get("ready") == 1)
    (pod,) = await engine.pods_of("swept")
    engine.crash()
    await engine.client.delete(JOBS, "swept", namespace="default")
    await engine.client.delete(PODS, pod["metadata"]["name"], namespace="default", grace_seconds=0)
    await engine.gone(PODS, pod["metadata"]["name"])
    engine.restart()
    directory = engine.work_dir / "pods" / pod["metadata"]["uid"]
    async with asyncio.timeout(30):
        while directory.exists():
            await asyncio.sleep(0.05)
    assert host_pipes.read_new("alive")
    await asyncio.sleep(0.3)
    assert not host_pipes.read_new("alive")


@pytest.mark.parametrize("engine", ["embedded"], indirect=True)
@pytest.mark.parametrize("seed", range(int(os.environ.get("HERDER_RUNNER_KILL_SEEDS", "6"))))
async def test_no_job_runs_twice_whenever_the_runner_is_killed(
    engine: Engine, host_pipes: HostPipes, seed: int
) -> None:
    """The process is killed twice while three Jobs go through all the steps of a start."""
    chance = random.Random(seed)
    names = [f"killed-{seed}-{number}" for number in range(3)]
    for name in names:
        script = f"echo ran >> {host_pipes.pipe(name)}; sleep 0.2; exit 0"
        await engine.client.create(JOBS, job(name, script), namespace="default")
        await asyncio.sleep(chance.uniform(0, 0.1))
    for _ in range(2):
        await asyncio.sleep(chance.uniform(0, 0.2))
        engine.crash()
        engine.restart()
        await engine.reconnect()
    for name in names:
        done = await engine.until(JOBS, name, finished)
        assert (finished(done), done["status"].get("succeeded"), host_pipes.read_new(name)) == ("Complete", 1, "ran\n")
        assert len(await engine.pods_of(name)) == 1
