"""The install script, run by the shell of a real machine against a real manager, until a plan is applied."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from herder.machine.host.kinds import Place
from tests.support.embedded import Embedded
from tests.unit.gateway.nodes.machines import FLAGS, Manager, eventually, go_agents
from tests.unit.machine.host.hosts import Host
from tests.unit.machine.process.visits import bootstrapped, run, said

NO_PYTHON = """mkdir -p /tmp/bin && for program in /usr/bin/* /bin/* /usr/sbin/* /sbin/*; do
case $program in */python*) ;; *) ln -sf "$program" /tmp/bin/ 2>/dev/null ;; esac; done; export PATH=/tmp/bin; """
NO_CURL = NO_PYTHON.replace("python*", "curl")


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    assets = go_agents(tmp_path_factory.mktemp("nodes") / "assets")
    flags = (*FLAGS, "--set", f"system-agent-assets={assets}")
    with Embedded(tmp_path_factory.mktemp("manager"), flags=flags) as server:
        here = Manager.of(server)
        here.put_up_cluster()
        yield here


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with Host(tmp_path_factory.mktemp("host")) as host:
        host.start()
        yield host


@pytest.fixture(scope="module")
def place(host: Host) -> Place:
    """A machine on which nothing has succeeded."""
    return host.create("refused")


# --- machines of both sorts ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(manager: Manager, host: Host) -> Place:
    """A machine that was made here; it runs its script at its first boot."""
    return host.create("made", manager.put_up_machine("made"))


async def test_a_machine_that_was_made_here_installs_its_agent_at_its_first_boot(manager: Manager, made: Place) -> None:
    await bootstrapped(made)
    assert await said(made, "cat /var/lib/herder/bootstrapped") == "succeeded"
    manager.applies("made", "it runs")
    assert await said(made, "cat /run/cluster-api/bootstrap-success.complete") == "success"
    modes = "stat -c %a /etc/rancher/agent/config.yaml /var/lib/rancher/agent/rancher2_connection_info.json"
    assert await said(made, modes) == "600\n600"
    left = "cd /var/lib/rancher/agent; ls -A interlock; ls -d .install* 2>/dev/null; true"
    assert await said(made, left) == ""


async def test_a_machine_does_not_say_itself_what_it_is(manager: Manager, made: Place) -> None:
    """Who has a worker must not have the keys of its cluster by a label."""
    await bootstrapped(made)
    plan = manager.find("secrets", "made-machine-plan")
    assert plan is not None
    plan["metadata"]["labels"]["rke.cattle.io/control-plane-role"] = "true"
    told = manager.refused(plan, "system:serviceaccount:fleet-default:made-machine-plan")
    assert "a node may only change the status keys of its plan Secret" in told


async def test_its_agent_comes_back_by_itself_and_with_the_machine(manager: Manager, host: Host, made: Place) -> None:
    await bootstrapped(made)
    await said(made, "pkill -f '[r]ancher-system-agent sentinel'")
    manager.applies("made", "it was killed")
    host.machine("made").stop()
    host.machine("made").start()
    manager.applies("made", "it was booted")
    assert await said(made, "pgrep -cf '[r]ancher-system-agent sentinel'") == "1"


async def test_a_machine_that_somebody_else_made_is_registered_by_a_command(manager: Manager, host: Host) -> None:
    place = host.create("custom")
    wanted = (
        "--roles",
        "worker",
        "--label",
        "colour=black",
        "--taint",
        "wool=thick:NoSchedule",
        "--node-name",
        "sheep-1",
    )
    told = manager.herder("register", "meadow", *wanted, "--address", "127.0.0.9")
    assert told.returncode == 0, told.stderr
    assert "treat it as a password" in told.stderr
    done = await run(place, told.stdout.replace("| sudo sh", "| sh"))  # there is no other user to become
    assert done.exit_status == 0, done.stderr
    (machine,) = [each for each in manager.machines() if each["metadata"]["name"].startswith("custom-")]
    labels = machine["metadata"]["labels"]
    assert (labels["colour"], labels["cattle.io/os"]) == ("black", "linux")
    assert labels["rke.cattle.io/node-name"] == "sheep-1"
    manager.applies(machine["metadata"]["name"], "it runs")
    again = await run(place, manager.registering("--worker"))
    assert again.exit_status == 0, again.stderr
    manager.applies(machine["metadata"]["name"], "it runs again")
    assert len([each for each in manager.machines() if each["metadata"]["name"].startswith("custom-")]) == 1
    assert await said(place, "pgrep -cf '[r]ancher-system-agent sentinel'") == "1"
    await said(place, "/usr/local/bin/rancher-system-agent-uninstall.sh")
    assert await said(place, "ls -d /etc/rancher/agent /var/lib/rancher/agent 2>/dev/null; ls /etc/herder/boot.d") == ""


@pytest.mark.parametrize(
    ("name", "before", "agent"), [("no-python", NO_PYTHON, "v0.15.0"), ("no-curl", NO_CURL, "herder-agent")]
)
async def test_a_machine_without_python_takes_the_go_agent_and_one_without_curl_uses_wget(
    manager: Manager, host: Host, name: str, before: str, agent: str
) -> None:
    place = host.create(name)
    script = await run(place, f"curl --insecure -sf {manager.url}/system-agent-install.sh -o /tmp/install.sh")
    assert script.exit_status == 0
    told = f"CATTLE_ID={name} CATTLE_AGENT_RETRIES=2 sh /tmp/install.sh --worker --token {manager.token}"
    done = await run(place, before + told)
    assert done.exit_status == 0, done.stdout + done.stderr
    ask = "/usr/local/bin/rancher-system-agent "
    version = await said(place, f"{ask} --version 2>/dev/null || {ask} version")
    assert agent in version
    (machine,) = [
        each for each in manager.machines() if each["metadata"]["labels"].get("rke.cattle.io/machine-id") == name
    ]
    manager.applies(machine["metadata"]["name"], "it runs")


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "options", "code", "text"),
    [
        (("--worker",), {"checksum": "0" * 64}, 3, "this is another manager"),
        (("--worker",), {"token": "z" * 54}, 4, "unknown token"),
        ((), {}, 2, "choose roles: --etcd, --controlplane, --worker, or --all-roles"),
        (("--worker", "--label", "nothing"), {}, 4, '--label: "nothing": must be key=value'),
        (("--worker", "--label", "a=b;touch /tmp/OOPS"), {}, 4, "--label a"),
        (("--worker", "--taint", "a=b"), {}, 4, "--taint"),
        (("--worker", "--surprise"), {}, 2, "--surprise: no such argument"),
        (("--worker", "--label"), {}, 2, "--label: needs a value"),
        (("--worker",), {"CATTLE_AGENT_VAR_DIR": "relative"}, 2, "CATTLE_AGENT_VAR_DIR"),
        (("--worker",), {"CATTLE_AGENT_VAR_DIR": "/a; rm -rf /"}, 2, "CATTLE_AGENT_VAR_DIR"),
        (("--worker",), {"CATTLE_AGENT_RETRIES": "many"}, 2, "CATTLE_AGENT_RETRIES"),
        (("--worker",), {"CATTLE_AGENT_BINARY_CHECKSUM": "0" * 64}, 1, "is not the one with checksum"),
        (("--worker", "--server", "https://127.0.0.1:1"), {"CATTLE_AGENT_RETRY_SECONDS": "0"}, 5, "000"),
        (("--worker", "--server", "nowhere"), {}, 2, "--server"),
    ],
)
async def test_what_cannot_be_is_told_with_its_name_and_an_exit_code(
    manager: Manager, place: Place, flags: tuple[str, ...], options: dict[str, str], code: int, text: str
) -> None:
    done = await run(place, manager.registering(*flags, **options))
    assert (done.exit_status, text in done.stderr.decode()) == (code, True), done.stdout + done.stderr
    assert await said(place, "ls /etc/herder/boot.d; ls -d /tmp/OOPS 2>/dev/null; true") == ""
    assert await said(place, "ls -d /var/lib/rancher/agent/.install* 2>/dev/null; true") == "", (
        "secrets are left behind"
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("meadow", "--roles", "shepherd"), 'unknown role "shepherd"; use etcd, controlplane, worker or all'),
        (("meadow", "--roles", "all", "--label", "nothing"), '--label: "nothing": must be key=value'),
        (("nowhere", "--roles", "all"), '"nowhere" not found'),
        (("local", "--namespace", "fleet-local"), "cluster local is imported"),
    ],
)
def test_the_command_is_printed_for_machines_that_can_be_registered(
    manager: Manager, words: tuple[str, ...], text: str
) -> None:
    told = manager.herder("register", *words)
    assert (told.returncode > 0, text in told.stderr, told.stdout) == (True, True, ""), told.stderr


def test_who_runs_a_command_that_was_tampered_with_runs_nothing_of_it(manager: Manager) -> None:
    """What it fetches is checked before any of it is run."""
    whole = manager.herder("register", "meadow", "--roles", "all").stdout.replace("| sudo sh", "| sh")
    checksum = re.search(r"echo \"([0-9a-f]{64})", whole)
    assert checksum is not None
    done = subprocess.run(
        ["sh", "-c", whole.replace(checksum[1], "0" * 64)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "[INFO]" not in done.stdout


async def test_a_script_whose_token_has_expired_says_so(manager: Manager, host: Host) -> None:
    script = manager.put_up_machine("late")
    mark = "rke.cattle.io/bootstrap-token-invalidated=true"
    manager.kubectl("annotate", "secret", "late-machine-bootstrap-token", "-n", "fleet-default", mark)
    place = host.create("late", script)
    await bootstrapped(place)
    assert await said(place, "cat /var/lib/herder/bootstrapped") == "failed"
    console = host.directory("late") / "console.log"
    eventually(lambda: "has expired" in console.read_text(), "the machine does not say why")
    assert "status 4" in console.read_text()


async def test_a_token_is_no_argument_of_a_program_and_in_no_log(manager: Manager, host: Host) -> None:
    """Of programs that the script starts: what a person types is that person's."""
    place = host.create("custom")
    spy = "for i in $(seq 400); do cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '; done > /tmp/seen & "
    await run(place, "cat > /tmp/token", input=manager.token.encode())
    script = f"curl --insecure -sf {manager.url}/system-agent-install.sh > /tmp/i.sh; "
    told = "CATTLE_TOKEN=$(cat /tmp/token) sh /tmp/i.sh --worker; wait; "
    count = "tr ' ' '\\n' < /tmp/seen | grep -cF -f /tmp/token"
    done = await run(place, script + spy + told + count)
    assert done.stdout.decode().splitlines()[-1] == "0", done.stdout[-500:]
    assert manager.token not in manager.log()
