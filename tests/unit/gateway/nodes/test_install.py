"""The install script in the shell of a real machine with a real manager, until a plan is applied."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from herder.machine.host.kinds import Place
from tests.support.embedded import Embedded
from tests.unit.gateway.nodes.manager import FLAGS, Manager, eventually, go_agent_assets
from tests.unit.machine.host.hosts import Host
from tests.unit.machine.process.machine_ssh import output_of, run, wait_bootstrapped

NO_PYTHON = """mkdir -p /tmp/bin && for program in /usr/bin/* /bin/* /usr/sbin/* /sbin/*; do
case $program in */python*) ;; *) ln -sf "$program" /tmp/bin/ 2>/dev/null ;; esac; done; export PATH=/tmp/bin; """
NO_CURL = NO_PYTHON.replace("python*", "curl")


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    assets = go_agent_assets(tmp_path_factory.mktemp("nodes") / "assets")
    flags = (*FLAGS, "--set", f"system-agent-assets={assets}")
    with Embedded(tmp_path_factory.mktemp("manager"), flags=flags) as server:
        manager = Manager.of(server)
        manager.create_cluster()
        yield manager


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with Host(tmp_path_factory.mktemp("host")) as host:
        host.start()
        yield host


@pytest.fixture(scope="module")
def machine_host(host: Host) -> Place:
    """A machine on which no installation succeeds."""
    return host.create("refused")


# --- provisioned and custom machines --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def provisioned(manager: Manager, host: Host) -> Place:
    """A provisioned machine, which runs its script at its first boot."""
    return host.create("made", manager.create_machine("made"))


async def test_a_provisioned_machine_installs_its_agent_at_first_boot(manager: Manager, provisioned: Place) -> None:
    await wait_bootstrapped(provisioned)
    assert await output_of(provisioned, "cat /var/lib/herder/bootstrapped") == "succeeded"
    manager.apply_plan("made", "it runs")
    assert await output_of(provisioned, "cat /run/cluster-api/bootstrap-success.complete") == "success"
    modes = "stat -c %a /etc/rancher/agent/config.yaml /var/lib/rancher/agent/rancher2_connection_info.json"
    assert await output_of(provisioned, modes) == "600\n600"
    list_command = "cd /var/lib/rancher/agent; ls -A interlock; ls -d .install* 2>/dev/null; true"
    assert await output_of(provisioned, list_command) == ""


async def test_a_machine_cannot_change_its_own_role(manager: Manager, provisioned: Place) -> None:
    """The owner of a worker must not get the keys of its cluster by a label."""
    await wait_bootstrapped(provisioned)
    plan = manager.find("secrets", "made-machine-plan")
    assert plan is not None
    plan["metadata"]["labels"]["rke.cattle.io/control-plane-role"] = "true"
    message = manager.replace_error(plan, "system:serviceaccount:fleet-default:made-machine-plan")
    assert "a node may only change the status keys of its plan Secret" in message


async def test_the_agent_restarts_after_a_crash_and_a_reboot(manager: Manager, host: Host, provisioned: Place) -> None:
    await wait_bootstrapped(provisioned)
    await output_of(provisioned, "pkill -f '[r]ancher-system-agent sentinel'")
    manager.apply_plan("made", "it was killed")
    host.machine("made").stop()
    host.machine("made").start()
    manager.apply_plan("made", "it was booted")
    assert await output_of(provisioned, "pgrep -cf '[r]ancher-system-agent sentinel'") == "1"


async def test_a_custom_machine_is_registered_with_the_command(manager: Manager, host: Host) -> None:
    machine_host = host.create("custom")
    flags = (
        "--roles",
        "worker",
        "--label",
        "colour=black",
        "--taint",
        "wool=thick:NoSchedule",
        "--node-name",
        "sheep-1",
    )
    printed = manager.herder("register", "meadow", *flags, "--address", "127.0.0.9")
    assert printed.returncode == 0, printed.stderr
    assert "treat it as a password" in printed.stderr
    result = await run(machine_host, printed.stdout.replace("| sudo sh", "| sh"))  # the machine has only root
    assert result.exit_status == 0, result.stderr
    (machine,) = [each for each in manager.machines() if each["metadata"]["name"].startswith("custom-")]
    labels = machine["metadata"]["labels"]
    assert (labels["colour"], labels["cattle.io/os"]) == ("black", "linux")
    assert labels["rke.cattle.io/node-name"] == "sheep-1"
    manager.apply_plan(machine["metadata"]["name"], "it runs")
    again = await run(machine_host, manager.registration_command("--worker"))
    assert again.exit_status == 0, again.stderr
    manager.apply_plan(machine["metadata"]["name"], "it runs again")
    assert len([each for each in manager.machines() if each["metadata"]["name"].startswith("custom-")]) == 1
    assert await output_of(machine_host, "pgrep -cf '[r]ancher-system-agent sentinel'") == "1"
    await output_of(machine_host, "/usr/local/bin/rancher-system-agent-uninstall.sh")
    assert (
        await output_of(
            machine_host, "ls -d /etc/rancher/agent /var/lib/rancher/agent 2>/dev/null; ls /etc/herder/boot.d"
        )
        == ""
    )


@pytest.mark.parametrize(
    ("name", "before", "agent"), [("no-python", NO_PYTHON, "v0.15.0"), ("no-curl", NO_CURL, "herder-agent")]
)
async def test_the_go_agent_replaces_python_and_wget_replaces_curl(
    manager: Manager, host: Host, name: str, before: str, agent: str
) -> None:
    machine_host = host.create(name)
    script = await run(machine_host, f"curl --insecure -sf {manager.url}/system-agent-install.sh -o /tmp/install.sh")
    assert script.exit_status == 0
    install = f"CATTLE_ID={name} CATTLE_AGENT_RETRIES=2 sh /tmp/install.sh --worker --token {manager.token}"
    result = await run(machine_host, before + install)
    assert result.exit_status == 0, result.stdout + result.stderr
    program = "/usr/local/bin/rancher-system-agent "
    version = await output_of(machine_host, f"{program} --version 2>/dev/null || {program} version")
    assert agent in version
    (machine,) = [
        each for each in manager.machines() if each["metadata"]["labels"].get("rke.cattle.io/machine-id") == name
    ]
    manager.apply_plan(machine["metadata"]["name"], "it runs")


# --- rejections -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "options", "code", "text"),
    [
        (("--worker",), {"checksum": "0" * 64}, 3, "this is another manager"),
        (("--worker",), {"token": "z" * 54}, 4, "unknown token"),
        ((), {}, 2, "roles: required; pass --etcd, --controlplane, --worker or --all-roles"),
        (("--worker", "--label", "nothing"), {}, 4, '--label: "nothing": must be key=value'),
        (("--worker", "--label", "a=b;touch /tmp/OOPS"), {}, 4, "--label a"),
        (("--worker", "--taint", "a=b"), {}, 4, "--taint"),
        (("--worker", "--surprise"), {}, 2, "--surprise: unknown argument"),
        (("--worker", "--label"), {}, 2, "--label: needs a value"),
        (("--worker",), {"CATTLE_AGENT_VAR_DIR": "relative"}, 2, "CATTLE_AGENT_VAR_DIR"),
        (("--worker",), {"CATTLE_AGENT_VAR_DIR": "/a; rm -rf /"}, 2, "CATTLE_AGENT_VAR_DIR"),
        (("--worker",), {"CATTLE_AGENT_RETRIES": "many"}, 2, "CATTLE_AGENT_RETRIES"),
        (("--worker",), {"CATTLE_AGENT_BINARY_CHECKSUM": "0" * 64}, 1, "does not have the checksum"),
        (("--worker", "--server", "https://127.0.0.1:1"), {"CATTLE_AGENT_RETRY_SECONDS": "0"}, 5, "000"),
        (("--worker", "--server", "nowhere"), {}, 2, "--server"),
    ],
)
async def test_invalid_arguments_are_reported_with_an_exit_code(
    manager: Manager, machine_host: Place, flags: tuple[str, ...], options: dict[str, str], code: int, text: str
) -> None:
    result = await run(machine_host, manager.registration_command(*flags, **options))
    assert (result.exit_status, text in result.stderr.decode()) == (code, True), result.stdout + result.stderr
    assert await output_of(machine_host, "ls /etc/herder/boot.d; ls -d /tmp/OOPS 2>/dev/null; true") == ""
    assert await output_of(machine_host, "ls -d /var/lib/rancher/agent/.install* 2>/dev/null; true") == "", (
        "secrets are left behind"
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("meadow", "--roles", "shepherd"), 'unknown role "shepherd"; use etcd, controlplane, worker or all'),
        (("meadow", "--roles", "all", "--label", "nothing"), '--label: "nothing": must be key=value'),
        (("nowhere", "--roles", "all"), '"nowhere" not found'),
        (("local", "--namespace", "fleet-local"), "cluster local is imported"),
    ],
)
def test_register_rejects_invalid_arguments(manager: Manager, arguments: tuple[str, ...], text: str) -> None:
    printed = manager.herder("register", *arguments)
    assert (printed.returncode > 0, text in printed.stderr, printed.stdout) == (True, True, ""), printed.stderr


def test_a_tampered_command_runs_nothing(manager: Manager) -> None:
    """The fetched script is verified before any of it runs."""
    command = manager.herder("register", "meadow", "--roles", "all").stdout.replace("| sudo sh", "| sh")
    checksum = re.search(r"echo \"([0-9a-f]{64})", command)
    assert checksum is not None
    result = subprocess.run(
        ["sh", "-c", command.replace(checksum[1], "0" * 64)], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode != 0
    assert "[INFO]" not in result.stdout


async def test_an_expired_token_is_reported_on_the_console(manager: Manager, host: Host) -> None:
    script = manager.create_machine("late")
    annotation = "rke.cattle.io/bootstrap-token-invalidated=true"
    manager.kubectl("annotate", "secret", "late-machine-bootstrap-token", "-n", "fleet-default", annotation)
    machine_host = host.create("late", script)
    await wait_bootstrapped(machine_host)
    assert await output_of(machine_host, "cat /var/lib/herder/bootstrapped") == "failed"
    console = host.directory("late") / "console.log"
    eventually(lambda: "has expired" in console.read_text(), "the console has no reason")
    assert "status 4" in console.read_text()


async def test_tokens_are_not_in_process_arguments_or_logs(manager: Manager, host: Host) -> None:
    """Only processes that the script starts count, not the command that a user types."""
    machine_host = host.create("custom")
    spy = "for i in $(seq 400); do cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '; done > /tmp/seen & "
    await run(machine_host, "cat > /tmp/token", input=manager.token.encode())
    script = f"curl --insecure -sf {manager.url}/system-agent-install.sh > /tmp/i.sh; "
    install = "CATTLE_TOKEN=$(cat /tmp/token) sh /tmp/i.sh --worker; wait; "
    count = "tr ' ' '\\n' < /tmp/seen | grep -cF -f /tmp/token"
    result = await run(machine_host, script + spy + install + count)
    assert result.stdout.decode().splitlines()[-1] == "0", result.stdout[-500:]
    assert manager.token not in manager.log()
