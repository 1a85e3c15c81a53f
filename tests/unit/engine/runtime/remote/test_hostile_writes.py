"""A malicious API server chooses neither the paths of the manager's writes, nor how much of its responses is kept."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from typing import Any

import pytest

from herder.engine.meta.errors import ServiceUnavailable
from herder.engine.runtime.decision import Apply, Connect, Decision
from herder.engine.runtime.executor import DecisionExecutor
from herder.engine.runtime.remote import observation
from herder.engine.runtime.writer import Writer
from herder.engine.wire import Request, Response
from tests.unit.engine.runtime.envtest import CONFIG_MAP, new_object, now
from tests.unit.engine.runtime.remote.hostile_servers import small_node
from tests.unit.engine.runtime.remote.remote_cluster import NODES, WATCHED, RemoteCluster, RemoteWire, run
from tests.unit.engine.runtime.remote.test_hostile import VIEW

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


@pytest.mark.parametrize("field", ["name", "namespace"])
@pytest.mark.parametrize("value", ["..", "n1/../../../c-other", "n1%2f..", "n1\x1b[2J", "n1\n"])
def test_names_that_change_a_path_or_control_a_terminal_are_rejected(field: str, value: str) -> None:
    """Clients of a provisioned cluster have a path prefix: that of the cluster in the manager's proxy."""
    node: Any = small_node(1)
    keep = observation.projector(NODES)
    assert keep(node)["metadata"]["name"] == "n1"
    node["metadata"][field] = value
    with pytest.raises(ServiceUnavailable, match=f"metadata.{field} "):
        keep(node)
