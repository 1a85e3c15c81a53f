"""A removed machine and the next one with its ID, whose plan Secrets have the same name."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.capi import HerderRun
from tests.support.embedded import Embedded
from tests.support.engines import CONTROLLERS, Engine
from tests.support.kube import RealKube, free_port
from tests.unit.gateway.nodes.manager import FLAGS, NAMESPACE, Manager, eventually

WATCH_SECONDS = 60


@pytest.fixture(scope="module", params=["embedded", "real"])
def manager(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    if request.param == "embedded":
        with Embedded(tmp_path_factory.mktemp("up"), flags=FLAGS) as server:
            yield _ready(Manager.of(server))
        return
    listen = f"127.0.0.1:{free_port()}"
    flags = ("--gateway-listen", listen, "--gateway-name", "127.0.0.1", "--set", f"server-url=https://{listen}")
    with RealKube(tmp_path_factory.mktemp("kube"), controller_manager=True, controllers=CONTROLLERS) as kube:
        options = ("--capi-core=own", "--no-machines", "--no-webhooks")
        with HerderRun(Engine("real", kube.kubeconfig), tmp_path_factory.mktemp("herder"), *flags, *options) as process:
            yield _ready(Manager(kube.kubeconfig, f"https://{listen}", process.log))


def _ready(manager: Manager) -> Manager:
    eventually(lambda: manager.kubectl("get", "clusters.management.cattle.io", check=False), "no manager runs")
    manager.create_cluster()
    return manager


def curl(*arguments: str) -> list[str]:
    return ["curl", "--insecure", "--silent", "--no-buffer", *arguments]


def register(manager: Manager) -> tuple[str, str]:
    """The name of the plan Secret, and the token that reads it."""
    headers = ("X-Cattle-Id: reused", "X-Cattle-Role-Worker: true", "X-Cattle-Internal-Address: 10.0.0.9")
    arguments = [
        argument for header in (*headers, f"Authorization: Bearer {manager.token}") for argument in ("-H", header)
    ]
    deadline = time.monotonic() + WATCH_SECONDS
    while True:
        result = subprocess.run(
            curl(*arguments, f"{manager.url}/v3/connect/agent"), capture_output=True, text=True, check=True
        )
        if result.stdout.startswith("{"):
            response = json.loads(result.stdout)
            return response["secretName"], yaml.safe_load(response["kubeConfig"])["users"][0]["user"]["token"]
        assert time.monotonic() < deadline, result.stdout
        time.sleep(0.5)


def test_a_removed_machine_does_not_see_the_plan_of_its_successor(manager: Manager, tmp_path: Path) -> None:
    name, token = register(manager)
    machine = name.removesuffix("-machine-plan")
    query = f"watch=true&fieldSelector=metadata.name={name}&timeoutSeconds={WATCH_SECONDS}"
    url = f"{manager.url}/api/v1/namespaces/{NAMESPACE}/secrets?{query}"
    watch_output = tmp_path / "seen"
    with watch_output.open("w") as output:
        watch = subprocess.Popen(curl("-H", f"Authorization: Bearer {token}", url), stdout=output)
    try:
        eventually(lambda: '"ADDED"' in watch_output.read_text(), "the watch has no event")
        manager.kubectl("delete", "machine", machine, "-n", NAMESPACE)
        eventually(lambda: manager.find("secrets", name) is None, "the plan Secret is not deleted")
        register(manager)
        manager.write_plan(machine, "for-the-successor")
        watch.wait(WATCH_SECONDS)
    finally:
        watch.kill()
        watch.wait()
    plans = [json.loads(line)["object"].get("data") or {} for line in watch_output.read_text().splitlines()]
    successor = manager.find("secrets", name)
    assert successor is not None
    assert all(each.get("plan") != successor["data"]["plan"] for each in plans)
