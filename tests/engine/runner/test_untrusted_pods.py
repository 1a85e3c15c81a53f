"""Attacks of a namespace editor on the host of the runner, on both engines.

Each test adds a node with the default policy to the engine: the node that the other tests share runs any pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from herder.engine.meta.kinds import Object
from herder.engine.runner.runner import Runner
from tests.engine.runner.engines import JOBS, PODS, Engine, finished, job
from tests.engine.runner.inprocess import wall_clock

NODE = "guarded"


@asynccontextmanager
async def guarded(engine: Engine, work_dir: Path, **options: Any) -> AsyncIterator[None]:
    options.setdefault("commands", lambda _image: None)
    runner = Runner(engine.client, name=NODE, work_dir=work_dir, clock=wall_clock, **options)
    task = asyncio.ensure_future(runner.run())
    try:
        async with asyncio.timeout(20):
            await runner.ready.wait()
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def on_node(obj: Object) -> Object:
    pod = obj["spec"]["template"]["spec"] if obj["kind"] == "Job" else obj["spec"]
    pod["nodeSelector"]["kubernetes.io/hostname"] = NODE
    return obj


@pytest.mark.xfail(strict=True, reason="the runner runs every pod that asks for its node")
async def test_a_job_of_a_namespace_editor_is_rejected(engine: Engine, tmp_path: Path) -> None:
    async with guarded(engine, tmp_path / "work"):
        await engine.client.create(JOBS, on_node(job("of-an-editor", "id")), namespace="default")
        assert finished(await engine.until(JOBS, "of-an-editor", finished)) == "Failed"
        (pod,) = await engine.pods_of("of-an-editor")
        assert (pod["status"]["phase"], pod["status"]["reason"]) == ("Failed", "PodNotApproved")


@pytest.mark.xfail(strict=True, reason="the runner runs every pod that asks for its node")
async def test_a_pod_of_a_namespace_editor_is_rejected(engine: Engine, tmp_path: Path) -> None:
    spec = job("bare", "id")["spec"]["template"]["spec"]
    bare = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bare", "namespace": "default"}, "spec": spec}
    async with guarded(engine, tmp_path / "work"):
        await engine.client.create(PODS, on_node(bare), namespace="default")
        ended = await engine.until(PODS, "bare", lambda pod: pod["status"]["phase"] in {"Succeeded", "Failed"})
        assert (ended["status"]["phase"], ended["status"]["reason"]) == ("Failed", "PodNotApproved")
