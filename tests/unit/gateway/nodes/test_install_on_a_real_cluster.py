"""Installation with a manager on a real cluster: node tokens are those of that cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.capi import HerderRun
from tests.support.engines import CONTROLLERS, Engine
from tests.support.kube import RealKube, free_port
from tests.unit.gateway.nodes.manager import Manager, eventually
from tests.unit.machine.host.hosts import Host
from tests.unit.machine.process.machine_ssh import run


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    listen = f"127.0.0.1:{free_port()}"
    flags = ("--gateway-listen", listen, "--gateway-name", "127.0.0.1", "--set", f"server-url=https://{listen}")
    with RealKube(tmp_path_factory.mktemp("kube"), controller_manager=True, controllers=CONTROLLERS) as kube:
        engine = Engine("real", kube.kubeconfig)
        options = ("--capi-core=own", "--no-machines", "--no-webhooks")
        with HerderRun(engine, tmp_path_factory.mktemp("herder"), *flags, *options) as process:
            manager = Manager(kube.kubeconfig, f"https://{listen}", process.log)
            eventually(lambda: manager.kubectl("get", "clusters.management.cattle.io", check=False), "no manager runs")
            manager.create_cluster()
            yield manager


async def test_a_machine_is_registered_and_applies_its_plan(
    manager: Manager, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Host(tmp_path_factory.mktemp("host")) as host:
        host.start()
        machine_host = host.create("custom")
        printed = manager.herder("register", "meadow", "--roles", "worker")
        assert printed.returncode == 0, printed.stderr
        result = await run(machine_host, printed.stdout.replace("| sudo sh", "| sh"))
        assert result.exit_status == 0, result.stderr
        (machine,) = manager.machines()
        manager.apply_plan(machine["metadata"]["name"], "it runs")
