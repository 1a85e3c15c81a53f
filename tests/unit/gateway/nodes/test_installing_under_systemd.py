"""The install script on a real Debian with systemd: the agent is a service, applies a plan and survives a reboot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.embedded import Embedded
from tests.support.kube import free_port
from tests.unit.gateway.nodes.machines import FLAGS, Manager
from tests.unit.machine.local.conftest import debian, host
from tests.unit.machine.local.host import Booted, Host

__all__ = ["debian", "host"]


@pytest.fixture(scope="module")
def machine(host: Host) -> Booted:
    return host.create("custom")


@pytest.fixture(scope="module")
def manager(host: Host, machine: Booted, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    """In the machines' own network, where the host is their gateway."""
    gateway = machine.ssh("ip route show default").split()[2]
    listen = f"{gateway}:{free_port()}"
    flags = (*FLAGS, "--advertise", gateway, "--set", f"server-url=https://{listen}")
    around = ("nsenter", f"--net=/run/netns/{host.name}")
    with Embedded(tmp_path_factory.mktemp("manager"), flags=flags, listen=listen, around=around) as server:
        here = Manager.of(server, f"https://{listen}")
        here.put_up_cluster()
        yield here


def test_the_agent_is_a_service_that_comes_back_with_the_machine(manager: Manager, machine: Booted) -> None:
    interface = machine.ssh("ip route show default").split()[4]
    said = machine.ssh(manager.registering("--worker", "--address", interface))
    assert "the agent is installed and runs" in said
    (registered,) = manager.machines()
    name = registered["metadata"]["name"]
    manager.applies(name, "it runs")
    secret = manager.find("secrets", f"{name}-machine-plan")
    assert secret is not None
    assert secret["metadata"]["annotations"]["rke.cattle.io/address"] == machine.place.address
    unit = machine.ssh("systemctl show rancher-system-agent -p Restart,RestartUSec,UnitFileState,ActiveState")
    assert unit.splitlines() == ["Restart=always", "RestartUSec=5s", "ActiveState=active", "UnitFileState=enabled"]
    assert machine.ssh("stat -c %a /etc/systemd/system/rancher-system-agent.env") == "600"
    machine.hosted.stop()
    machine.hosted.start()
    manager.applies(name, "it was booted")


def test_uninstalling_leaves_nothing_of_it(manager: Manager, machine: Booted) -> None:
    machine.ssh("/usr/local/bin/rancher-system-agent-uninstall.sh")
    directories = "/etc/rancher/agent /var/lib/rancher/agent"
    left = f"ls -d {directories} /etc/systemd/system/rancher-system-agent* /usr/local/bin/rancher*"
    assert machine.ssh(f"{left} 2>/dev/null; true") == ""
    assert machine.ssh("pgrep -cf '[r]ancher-system-agent sentinel' || true") == "0"
