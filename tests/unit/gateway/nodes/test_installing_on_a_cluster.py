"""The same where the manager is on a real cluster: nodes come to it with tokens of that cluster's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.capi import HerderRun
from tests.support.engines import CONTROLLERS, Engine
from tests.support.kube import RealKube, free_port
from tests.unit.gateway.nodes.machines import Manager, eventually
from tests.unit.machine.host.hosts import Host
from tests.unit.machine.process.visits import run


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    listen = f"127.0.0.1:{free_port()}"
    flags = ("--gateway-listen", listen, "--gateway-name", "127.0.0.1", "--set", f"server-url=https://{listen}")
    with RealKube(tmp_path_factory.mktemp("kube"), controller_manager=True, controllers=CONTROLLERS) as kube:
        engine = Engine("real", kube.kubeconfig)
        bare = ("--capi-core=own", "--no-machines", "--no-webhooks")
        with HerderRun(engine, tmp_path_factory.mktemp("herder"), *flags, *bare) as ours:
            here = Manager(kube.kubeconfig, f"https://{listen}", ours.log)
            eventually(lambda: here.kubectl("get", "clusters.management.cattle.io", check=False), "no manager runs")
            here.put_up_cluster()
            yield here


async def test_a_machine_is_registered_and_applies_its_plan(
    manager: Manager, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Host(tmp_path_factory.mktemp("host")) as host:
        host.start()
        place = host.create("custom")
        told = manager.herder("register", "meadow", "--roles", "worker")
        assert told.returncode == 0, told.stderr
        done = await run(place, told.stdout.replace("| sudo sh", "| sh"))
        assert done.exit_status == 0, done.stderr
        (machine,) = manager.machines()
        manager.applies(machine["metadata"]["name"], "it runs")
