"""Instructions run by what they execute, not by their names; programs and scripts that are not known fail."""

from __future__ import annotations

import asyncio

import pytest

from herder.agent.core.events import Finished
from herder.agent.core.plan import Instruction
from herder.api.capi.kinds import NODE
from herder.api.rke.node.plan import Instruction as PlanInstruction
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs, Roles
from herder.controllers.planner.distributions.rancher.install import address_instructions
from herder.controllers.planner.distributions.rancher.runtime import K3S
from herder.controllers.planner.distributions.rancher.scripts import run_once, run_once_script
from herder.sim.host.command import Command
from herder.sim.host.service import UNIT_DIRECTORY
from herder.sim.host.shell import execute
from herder.sim.nodes import SimulatedNode
from tests.simulation.host.servers import Servers, run

D = "/var/lib/rancher/k3s"
CLUSTER = ClusterInputs("fleet-default", "meadow", "c-1", "v1.36.3+k3s1", {})

UNKNOWN = (
    ("nosuch",),
    ("sh", "-c", "echo hello"),
    ("sh", "-c", "curl https://example.com"),
    ("/bin/sh", "-x", "/missing.sh"),
    ("/somewhere/k3s", "etcd-snapshot", "save"),
    ("k3s", "kubectl", "get", "nodes"),
    ("k3s", "etcd-snapshot", "rename"),
    ("rke2", "etcd-snapshot", "save"),
    ("rke2-killall.sh",),
    ("python3", "-c", "print()"),
    ("powershell.exe", "-File", "run.ps1"),
)


def instruction(each: PlanInstruction) -> Instruction:
    return Instruction(each.name, each.image, each.command, list(each.args), list(each.env), each.save_output, 0)


@pytest.mark.parametrize("argv", UNKNOWN, ids=" ".join)
def test_unknown_commands_fail(argv: tuple[str, ...]) -> None:
    async def scenario(servers: Servers) -> None:
        finished = await servers.run("s1", *argv)
        assert finished.exit_code == 127
        assert finished.stderr

    run(scenario, servers=1)


def test_an_unknown_image_has_no_installer() -> None:
    async def scenario(servers: Servers) -> None:
        unknown = Instruction("install", "library/busybox:1", "sh", ["-c", "run.sh"], [], False, 0)
        assert (await servers["s1"].run(unknown, 1)).exit_code == 127
        assert servers["s1"].running

    run(scenario, servers=1)


def test_scripts_are_a_closed_registry() -> None:
    seen: list[list[str]] = []

    async def simulated(command: Command) -> Finished:
        seen.append(list(command.arguments))
        return Finished(3, b"done")

    async def scenario(servers: Servers) -> None:
        servers.context.scripts = {"the script": simulated}
        assert (await servers.run("s1", "sh", "-c", "the script", "sh", "a", "b")).exit_code == 3
        assert (await servers.run("s1", "sh", "-c", "the script ", "sh", "a")).exit_code == 127
        assert seen == [["a", "b"]]

    run(scenario, servers=1)


def test_scripts_run_other_programs_and_reach_the_api() -> None:
    async def stop_and_count(command: Command) -> Finished:
        nodes = (await command.node.cluster.api.list(NODE.resource)).items
        finished = await execute(command, "systemctl", "stop", command.arguments[0])
        return finished._replace(stdout=str(len(nodes)).encode())

    async def scenario(servers: Servers) -> None:
        servers.context.scripts = {"the script": stop_and_count}
        finished = await servers.run("s1", "sh", "-c", "the script", "name", "k3s")
        assert (finished.exit_code, finished.stdout) == (0, b"2")
        assert not servers["s1"].running

    run(scenario, servers=1)


def test_the_wrapper_of_the_planner_runs_a_command_once_for_each_attempt() -> None:
    machine = MachineInputs("s1", "uid", Roles(etcd=True, control_plane=True))

    async def scenario(servers: Servers) -> None:
        node = servers["s1"]
        command = PlanInstruction(name="stop", command="systemctl", args=("stop", "k3s"))
        wrapped = instruction(run_once(CLUSTER, "Stop", "1", command))
        assert (await node.run(wrapped, 1)).exit_code == 127, "the script is not there yet"
        script = run_once_script(CLUSTER, machine)
        servers.write(node, script.path, "#!/bin/sh\n")
        assert (await node.run(wrapped, 1)).exit_code == 0
        assert not node.running
        node.service.start()
        await servers.until(lambda: _is_running(node))
        skipped = await node.run(wrapped, 1)
        assert (skipped.exit_code, node.running) == (0, True)
        assert b"stop has been done for" in skipped.stdout
        assert (await node.run(wrapped, 2)).exit_code == 0
        assert not node.running
        other = instruction(run_once(CLUSTER, "Stop", "2", command))
        node.service.start()
        await servers.until(lambda: _is_running(node))
        await node.run(other, 2)
        assert not node.running

    run(scenario, servers=1)


async def _is_running(node: SimulatedNode) -> bool:
    return node.running


def test_periodic_address_instructions_of_the_planner() -> None:
    async def scenario(servers: Servers) -> None:
        capture, name = (
            Instruction(each.name, "", each.command, list(each.args), [], True, 0)
            for each in address_instructions(CLUSTER, K3S)
        )
        assert b'"clientURLs": ["https://10.0.0.1:2379"]' in (await servers["s1"].run(capture, 1)).stdout
        assert (await servers["s1"].run(name, 1)).stdout.startswith(b"s1-")
        await servers.run("s1", "systemctl", "stop", "k3s")
        assert (await servers["s1"].run(capture, 1)).exit_code == 1
        assert (await servers["s1"].run(name, 1)).exit_code == 0
        await servers.run("s1", "rm", "-rf", f"{D}/server/db/etcd")
        assert (await servers["s1"].run(name, 1)).exit_code == 1

    run(scenario, servers=1)


def test_services() -> None:
    async def scenario(servers: Servers) -> None:
        assert (await servers.run("s1", "systemctl", "is-active", "k3s")).stdout == b"active\n"
        assert (await servers.run("s1", "systemctl", "stop", "k3s")).exit_code == 0
        inactive = await servers.run("s1", "systemctl", "is-active", "k3s")
        assert (inactive.exit_code, inactive.stdout) == (3, b"inactive\n")
        assert (await servers.run("s1", "systemctl", "reset-failed", "k3s")).exit_code == 0
        assert (await servers.run("s1", "systemctl", "start", "k3s.service")).exit_code == 0
        starts = servers["s1"].starts
        assert (await servers.run("s1", "systemctl", "restart", "k3s")).exit_code == 0
        assert servers["s1"].starts == starts + 1
        assert (await servers.run("s1", "systemctl", "restart", "nosuch")).exit_code == 5
        assert (await servers.run("s1", "systemctl", "explode", "k3s")).exit_code == 1
        assert (await servers.run("s1", "k3s-killall.sh")).exit_code == 0
        assert not servers["s1"].running

    run(scenario, servers=1)


def restart(node: SimulatedNode) -> None:
    """Restart a machine. These machines have no plan Secret that an agent could watch."""
    node._start_agent = lambda: None  # type: ignore[method-assign]
    node.power_off()
    node.boot()


def test_a_condition_of_a_unit() -> None:
    """A start whose condition does not hold does nothing, and succeeds: by the machine, systemctl, or after a crash."""

    async def scenario(servers: Servers) -> None:
        node, fence = servers["s1"], "/srv/fence"
        drop_in = f"{UNIT_DIRECTORY}/k3s.service.d/50-fence.conf"
        node.disk.files |= {fence: b"", drop_in: f"[Unit]\nConditionPathExists=!{fence}\n".encode()}
        assert node.running, "it is read when the service starts"
        node.service.crash()
        restart(node)
        for verb in ("start", "restart"):
            assert (await servers.run("s1", "systemctl", verb, "k3s")).exit_code == 0
            assert node.service.state == "inactive"
        node.disk.files.pop(fence)
        assert (await servers.run("s1", "systemctl", "start", "k3s")).exit_code == 0
        assert node.running

    run(scenario, servers=1)


def test_a_disabled_unit() -> None:
    async def scenario(servers: Servers) -> None:
        node = servers["s1"]
        for verb, state in (("disable", "inactive"), ("enable", "activating")):
            assert (await servers.run("s1", "systemctl", verb, "k3s")).exit_code == 0
            restart(node)
            assert node.service.state == state

    run(scenario, servers=1)


def test_files() -> None:
    async def scenario(servers: Servers) -> None:
        node = servers["s1"]
        assert (await servers.run("s1", "touch", "/srv/a/b")).exit_code == 1
        assert (await servers.run("s1", "mkdir", "-p", "/srv/a")).exit_code == 0
        assert (await servers.run("s1", "touch", "/srv/a/b")).exit_code == 0
        assert node.disk.files["/srv/a/b"] == b""
        assert (await servers.run("s1", "rm", "/srv/a")).exit_code == 1
        assert (await servers.run("s1", "rm", "/srv/nosuch")).exit_code == 1
        assert (await servers.run("s1", "rm", "-rf", "/srv/a", "/srv/nosuch")).exit_code == 0
        assert not node.disk.exists("/srv/a/b")
        await servers.run("s1", "rm", "-rf", f"{D}/server/db/snapshots/*")
        assert node.disk.etcd is not None, "no shell expands a pattern"
        await servers.run("s1", "rm", "-rf", f"{D}/server/tls", f"{D}/server/cred")
        assert node.disk.encryption is None
        await servers.run("s1", "systemctl", "restart", "k3s")
        assert node.disk.encryption is not None
        assert f"{D}/server/tls/client-admin.crt" in node.disk.files

    run(scenario, servers=1)


def test_an_instruction_with_a_timeout_is_ended() -> None:
    async def scenario(servers: Servers) -> None:
        await servers.run("s1", "systemctl", "stop", "k3s")
        servers["s1"].disk.files.pop(f"{D}/server/db/etcd")
        servers.configure(servers["s1"], server="w1")  # nothing answers there
        finished = await servers.run("s1", "systemctl", "start", "k3s", timeout=30)
        assert finished.exit_code == -1
        assert finished.error == "did not end within 30 s, and was ended"
        assert servers["s1"].service.state == "activating"

    run(scenario, servers=1)


def test_an_installation_without_start_restarts_later() -> None:
    async def scenario(servers: Servers) -> None:
        node = servers["s1"]
        starts = node.starts
        await servers.install(node, RESTART_STAMP="2", INSTALL_K3S_SKIP_START="true")
        await asyncio.sleep(60)
        assert node.starts == starts
        await servers.install(node, RESTART_STAMP="2")
        assert node.starts == starts + 1

    run(scenario, servers=1)
