"""kubectl commands that keep running: watches, waiting deletions, proxies."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from tests.interop.kubectl.side_by_side import SideBySide, masked
from tests.support.api import TIMEOUT, Api
from tests.support.engines import Engine
from tests.support.peers import peer


@contextmanager
def running(engine: Engine, *arguments: str) -> Iterator[IO[str]]:
    """The command's output, line by line, while it runs."""
    environment = os.environ | {"KUBECONFIG": str(engine.kubeconfig), "KUBECACHEDIR": f"{engine.kubeconfig}.cache"}
    with subprocess.Popen([peer("kubectl"), *arguments], stdout=subprocess.PIPE, text=True, env=environment) as process:
        watchdog = threading.Timer(TIMEOUT, process.kill)  # then reading ends, and the test fails
        watchdog.start()
        try:
            assert process.stdout is not None
            yield process.stdout
        finally:
            watchdog.cancel()
            process.kill()


def test_get_watch(both: SideBySide) -> None:
    outputs = []
    for engine in both.engines:
        scope = ("-n", both.namespace)
        watch = ("get", "fences", "-w", "--output-watch-events", "--field-selector=metadata.name=west", *scope)
        with running(engine, *watch) as lines:
            engine.kubectl(
                "apply", "-f", "-", *scope,
                stdin="{apiVersion: pasture.example.com/v1, kind: Fence, metadata: {name: west}, spec: {posts: 1}}",
            )  # fmt: skip
            seen = [lines.readline(), lines.readline()]
            engine.kubectl("scale", "fence", "west", "--replicas=2", *scope)
            seen.append(lines.readline())
            engine.kubectl("delete", "fence", "west", *scope)
            seen.append(lines.readline())
        outputs.append([masked(line, both.namespace).split() for line in seen])
    assert outputs[0] == outputs[1]
    assert outputs[0] == [
        ["EVENT", "NAME", "POSTS", "AGE"],
        ["ADDED", "west", "1", "AGE"],
        ["MODIFIED", "west", "2", "AGE"],
        ["DELETED", "west", "2", "AGE"],
    ]


async def test_proxy_forwards_requests(engine: Engine, api: Api) -> None:
    with running(engine, "proxy", "--port=0") as lines:
        address = lines.readline().split()[-1]
        with urllib.request.urlopen(f"http://{address}/api/v1/namespaces/{api.namespace}", timeout=30) as answer:
            assert json.load(answer)["status"] == {"phase": "Active"}


async def test_delete_waits_until_the_finalizer_is_removed(engine: Engine, api: Api) -> None:
    await api.create("configmaps", {"metadata": {"name": "held", "finalizers": ["example.com/held"]}})
    with running(engine, "delete", "configmap", "held", "-n", api.namespace) as lines:
        assert "deleted" in lines.readline()
        url = api.at("configmaps", "held")
        await api.until_object(url, lambda found: "deletionTimestamp" in found["metadata"])
        (await api.patch(url, {"metadata": {"finalizers": None}})).expect(200)
        assert lines.readline() == "", "the command ends"
    await api.until_gone(url)


def test_kubectl_understands_the_kubeconfig(embedded_engine: Engine) -> None:
    context = embedded_engine.kubectl("config", "current-context").stdout.strip()
    assert context in embedded_engine.kubectl("config", "get-contexts", "-o", "name").stdout
    viewed = embedded_engine.kubectl("config", "view").stdout
    assert "REDACTED" in viewed or "DATA+OMITTED" in viewed, "credentials are embedded in the file"
