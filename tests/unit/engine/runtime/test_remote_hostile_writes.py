"""Responses of a malicious API server to writes cost the manager no lasting memory."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc

from herder.engine.runtime.decision import Apply, Connect, Decision
from herder.engine.runtime.executor import DecisionExecutor
from herder.engine.runtime.writer import Writer
from herder.engine.wire import Request, Response
from tests.unit.engine.runtime.envtest import CONFIG_MAP, new_object, now
from tests.unit.engine.runtime.remote_cluster import WATCHED, RemoteCluster, RemoteWire, run
from tests.unit.engine.runtime.test_remote_hostile import VIEW

ANSWER_BYTES = 1 << 20  # a cluster may send 16 MiB
WRITES = 32


class LargeAnswers(RemoteWire):
    """Answers writes with identity metadata of any size."""

    async def send(self, request: Request) -> Response:
        if request.method == "GET":
            return await super().send(request)
        name = request.path.rpartition("/")[2]
        meta = {"name": name, "namespace": "default", "uid": name * (ANSWER_BYTES // len(name)), "resourceVersion": "1"}
        body = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}).encode()
        return Response(200, {"content-type": "application/json"}, body)


def test_answers_to_writes_are_not_kept() -> None:
    """A project has a binding in each namespace, and the cluster controls the number of namespaces."""

    def prepare(wire: RemoteWire) -> None:
        wire.__class__ = LargeAnswers

    async def work(cluster: RemoteCluster) -> int:
        cluster.prepare = prepare
        cluster.ask(Connect("far"), WATCHED)
        await asyncio.sleep(1)
        writer = Writer(cluster.there.client, caches={}, on_change=lambda *_change: None, remote=cluster.remotes.client)
        executor = DecisionExecutor(writer)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for number in range(WRITES):
            decision = Decision((Apply(CONFIG_MAP, new_object(f"a{number}"), "wanted", target="far"),))
            await executor.execute(decision, VIEW, manager="tester", now=now())
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before

    tracemalloc.start()
    try:
        kept = run(work)
    finally:
        tracemalloc.stop()
    assert kept < 4 * ANSWER_BYTES, f"{kept >> 20} MiB of {WRITES} responses are kept"
