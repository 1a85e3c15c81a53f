"""A runner that is killed at any moment: what ran goes on, and nothing runs twice without a word."""

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

from tests.engine.runner.engines import JOBS, PODS, Engine, finished, job, terminated


@pytest.fixture
def outside() -> Iterator[Path]:
    """A directory that containers share with the host: /tmp is their own, this is not in it."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="runner-test-") as name:
        path = Path(name)
        path.chmod(0o777)
        yield path


async def test_a_running_job_survives_a_killed_runner_and_runs_once(engine: Engine, outside: Path) -> None:
    script = f"cd {outside}; echo ran >> count; echo up; until [ -e gate ]; do sleep 0.05; done; echo through; exit 5"
    await engine.client.create(JOBS, job("survivor", script), namespace="default")
    await engine.until(JOBS, "survivor", lambda one: one["status"].get("ready") == 1)
    engine.crash()
    engine.restart()
    await engine.reconnect()
    await asyncio.sleep(1)
    (outside / "gate").touch()
    done = await engine.until(JOBS, "survivor", finished)
    assert (finished(done), done["status"]["failed"]) == ("Failed", 1)
    (pod,) = await engine.pods_of("survivor")
    assert terminated(pod)["exitCode"] == 5
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    assert await engine.kubectl_beside("logs", "job/survivor") == "up\nthrough\n"
    assert (outside / "count").read_text() == "ran\n"


async def test_a_job_that_ended_while_no_runner_was_there_is_told_right(engine: Engine, outside: Path) -> None:
    wait = "until [ -e gate ]; do sleep 0.05; done"
    script = f"cd {outside}; echo ran >> count; {wait}; printf late >/dev/termination-log"
    await engine.client.create(JOBS, job("unwatched", script), namespace="default")
    await engine.until(JOBS, "unwatched", lambda one: one["status"].get("ready") == 1)
    engine.crash()
    (outside / "gate").touch()
    await asyncio.sleep(0.5)
    engine.restart()
    await engine.reconnect()
    done = await engine.until(JOBS, "unwatched", finished)
    assert (finished(done), done["status"]["succeeded"]) == ("Complete", 1)
    (pod,) = await engine.pods_of("unwatched")
    assert terminated(pod)["message"] == "late"
    assert (outside / "count").read_text() == "ran\n"


async def test_a_container_whose_watcher_was_killed_is_reported_and_its_processes_are_gone(
    engine: Engine, outside: Path
) -> None:
    script = f"echo ran >> {outside}/count; while :; do touch {outside}/alive; sleep 0.05; done"
    await engine.client.create(JOBS, job("orphan", script), namespace="default")
    await engine.until(JOBS, "orphan", lambda one: one["status"].get("ready") == 1)
    (pod,) = await engine.pods_of("orphan")
    engine.crash()
    running = next((engine.work_dir / "pods" / pod["metadata"]["uid"]).glob("containers/main/0/running"))
    os.kill(json.loads(running.read_text())["shim"], signal.SIGKILL)
    await asyncio.sleep(0.5)
    (outside / "alive").unlink()
    engine.restart()
    await engine.reconnect()
    done = await engine.until(JOBS, "orphan", finished)
    assert finished(done) == "Failed"
    (pod,) = await engine.pods_of("orphan")
    assert (terminated(pod)["exitCode"], terminated(pod)["reason"]) == (137, "ContainerStatusUnknown")
    assert (outside / "count").read_text() == "ran\n"
    assert not (outside / "alive").exists()


# On the embedded server the API goes away with the runner, so nothing can be deleted meanwhile.
@pytest.mark.parametrize("engine", ["real"], indirect=True)
async def test_a_pod_deleted_while_no_runner_was_there_is_ended_by_the_next(engine: Engine, outside: Path) -> None:
    script = f"while :; do touch {outside}/alive; sleep 0.05; done"
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
    (outside / "alive").unlink()
    await asyncio.sleep(0.3)
    assert not (outside / "alive").exists()


@pytest.mark.parametrize("engine", ["embedded"], indirect=True)
@pytest.mark.parametrize("seed", range(int(os.environ.get("HERDER_RUNNER_KILL_SEEDS", "6"))))
async def test_whenever_the_runner_is_killed_no_job_runs_twice(engine: Engine, outside: Path, seed: int) -> None:
    """Three Jobs are on their way through all the steps of a start when the process is killed, twice."""
    chance = random.Random(seed)
    names = [f"killed-{seed}-{number}" for number in range(3)]
    for name in names:
        script = f"echo ran >> {outside}/{name}; sleep 0.2; exit 0"
        await engine.client.create(JOBS, job(name, script), namespace="default")
        await asyncio.sleep(chance.uniform(0, 0.1))
    for _ in range(2):
        await asyncio.sleep(chance.uniform(0, 0.2))
        engine.crash()
        engine.restart()
        await engine.reconnect()
    for name in names:
        done = await engine.until(JOBS, name, finished)
        ran = (outside / name).read_text() if (outside / name).exists() else ""
        assert (finished(done), done["status"].get("succeeded"), ran) == ("Complete", 1, "ran\n")
        assert len(await engine.pods_of(name)) == 1
