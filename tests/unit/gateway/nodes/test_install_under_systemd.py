"""The install script on Debian with systemd: the agent is a service, applies a plan and survives a reboot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.embedded import Embedded
from tests.support.kube import free_port
from tests.unit.gateway.nodes.manager import FLAGS, Manager
from tests.unit.machine.local.conftest import debian, host
from tests.unit.machine.local.host import Booted, Host

__all__ = ["debian", "host"]


@pytest.fixture(scope="module")
def machine(host: Host) -> Booted:
    return host.create("custom")


@pytest.fixture(scope="module")
def manager(host: Host, machine: Booted, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    """A manager in the network of the machines, where the host is their gateway."""
    gateway = machine.ssh("ip route show default").split()[2]
    listen = f"{gateway}:{free_port()}"
    flags = (*FLAGS, "--advertise", gateway, "--set", f"server-url=https://{listen}")
    prefix = ("nsenter", f"--net=/run/netns/{host.name}")
    with Embedded(tmp_path_factory.mktemp("manager"), flags=flags, listen=listen, command_prefix=prefix) as server:
        manager = Manager.of(server, f"https://{listen}")
        manager.create_cluster()
        yield manager


def test_the_agent_is_a_service_that_starts_at_boot(manager: Manager, machine: Booted) -> None:
    interface = machine.ssh("ip route show default").split()[4]
    output = machine.ssh(manager.registration_command("--worker", "--address", interface))
    assert "the agent is installed and running" in output
    (registered,) = manager.machines()
    name = registered["metadata"]["name"]
    manager.apply_plan(name, "it runs")
    secret = manager.find("secrets", f"{name}-machine-plan")
    assert secret is not None
    assert secret["metadata"]["annotations"]["rke.cattle.io/address"] == machine.place.address
    unit = machine.ssh("systemctl show rancher-system-agent -p Restart,RestartUSec,UnitFileState,ActiveState")
    assert unit.splitlines() == ["Restart=always", "RestartUSec=5s", "ActiveState=active", "UnitFileState=enabled"]
    assert machine.ssh("stat -c %a /etc/systemd/system/rancher-system-agent.env") == "600"
    machine.hosted.stop()
    machine.hosted.start()
    manager.apply_plan(name, "it was booted")


def test_uninstall_removes_all_files_and_processes(manager: Manager, machine: Booted) -> None:
    machine.ssh("/usr/local/bin/rancher-system-agent-uninstall.sh")
    directories = "/etc/rancher/agent /var/lib/rancher/agent"
    list_command = f"ls -d {directories} /etc/systemd/system/rancher-system-agent* /usr/local/bin/rancher*"
    assert machine.ssh(f"{list_command} 2>/dev/null; true") == ""
    assert machine.ssh("pgrep -cf '[r]ancher-system-agent sentinel' || true") == "0"
