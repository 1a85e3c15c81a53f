"""What a new user sees: the server in the background, progress after Ctrl-C, questions, completion and conversion."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.embedded import HERDER
from tests.support.kube import free_port
from tests.support.manager.machines import host_shutdown
from tests.support.manager.node_agents import eventually
from tests.support.peers import peer
from tests.unit.cli.commands import Terminal, expect_failure, herder

NAME = "meadow"
WARNING = re.compile(r'"level":"(warning|error)"')


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Data directory of a server that `herder up --detach` started."""
    directory = tmp_path_factory.mktemp("data")
    with host_shutdown(directory):
        flags = ("--data-dir", directory, "--listen", f"127.0.0.1:{free_port()}")
        output = herder("up", "--detach", *flags).stdout
        assert f"export KUBECONFIG={directory}/kubeconfig" in output
        assert f"log in {directory}/up.log" in output
        assert f"herder down --data-dir {directory}" in output
        try:
            yield directory
        finally:
            herder("down", "--data-dir", directory, check=False)


@pytest.fixture(scope="module")
def environment(directory: Path) -> dict[str, str]:
    return {"KUBECONFIG": str(directory / "kubeconfig")}


def test_a_healthy_run_logs_no_warning(directory: Path, environment: dict[str, str]) -> None:
    """From the start of the server to a ready cluster."""
    herder("create", "cluster", NAME, "--servers", "1", "--workers", "1", **environment)
    log = (directory / "up.log").read_text()
    assert not [line for line in log.splitlines() if WARNING.search(line)]


def test_machines_are_listed_with_cluster_role_address_and_version(environment: dict[str, str]) -> None:
    header, *rows = [line.split() for line in herder("get", "machines", **environment).stdout.splitlines()]
    assert header == ["NAME", "CLUSTER", "ROLES", "ADDRESS", "VERSION", "PHASE", "REASON", "AGE"]
    assert [row[1:3] for row in rows] == [[NAME, "etcd,controlplane"], [NAME, "worker"]]
    assert all(row[3].startswith("127.") and row[4] == "v1.36.3+herder1" and row[5] == "Running" for row in rows)


def test_scale_prints_the_object_and_keeps_progress_apart(environment: dict[str, str]) -> None:
    result = herder("scale", "cluster", NAME, "workers=1", "-o", "json", **environment)
    cluster = json.loads(result.stdout)
    assert (cluster["kind"], cluster["metadata"]["name"]) == ("Cluster", NAME)
    assert "managedFields" not in cluster["metadata"]
    assert f"cluster {NAME} is ready" in result.stderr
    shown = yaml.safe_load(
        herder("scale", "cluster", NAME, "workers=1", "--no-wait", "-o", "yaml", **environment).stdout
    )
    assert shown["spec"] == cluster["spec"]


def test_versions_of_client_and_manager_are_printed(environment: dict[str, str]) -> None:
    lines = herder("version", **environment).stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["client", "manager", "kubernetes API"]
    assert lines[0].partition(": ")[2] == lines[1].partition(": ")[2]
    assert herder("version", "--client").stdout == lines[0] + "\n"


def test_get_watches_changes(environment: dict[str, str]) -> None:
    terminal = Terminal("get", "configmaps", "-n", "default", "-w", **environment)
    terminal.read_until("kube-root-ca.crt")
    kubectl = [peer("kubectl"), "create", "configmap", "seen", "-n", "default"]
    subprocess.run(kubectl, env=os.environ | environment, check=True, capture_output=True)
    terminal.read_until("seen")
    terminal.type("\x03")
    assert terminal.exit_status() == 130
    assert terminal.output.count("NAME ") == 1


def test_after_an_interrupt_the_operation_continues_and_can_be_waited_for(environment: dict[str, str]) -> None:
    terminal = Terminal("scale", "cluster", NAME, "workers=2", **environment)
    terminal.read_until("machine meadow-workers")
    terminal.type("\x03")
    assert terminal.exit_status() == 130
    assert "The operation continues in the manager" in terminal.output
    assert f"herder wait cluster {NAME}" in terminal.output
    assert f"cluster {NAME} is ready" in herder("wait", "cluster", NAME, **environment).stdout
    assert len(herder("get", "machines", "-o", "name", **environment).stdout.splitlines()) == 3


def test_a_wait_for_an_unknown_cluster_fails(environment: dict[str, str]) -> None:
    assert 'cluster "heath" not found' in expect_failure("wait", "cluster", "heath", **environment)
    assert "is deleted" in herder("wait", "cluster", "heath", "--for", "deleted", **environment).stdout


def test_logs_of_a_cluster_are_followed(environment: dict[str, str]) -> None:
    terminal = Terminal("logs", "cluster", NAME, "-f", **environment)
    terminal.read_until("provisioning done")
    herder("upgrade", "cluster", NAME, "v1.36.4+herder1", **environment)
    terminal.read_until("configuring")
    terminal.type("\x03")
    assert terminal.exit_status() == 130


def test_the_manager_is_found_after_its_cluster_became_the_current_context(
    directory: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    own = tmp_path / "config"
    shutil.copy(directory / "kubeconfig", own)
    variables = {"KUBECONFIG": str(own)}
    assert "made it the current context" in herder("kubeconfig", NAME, "--merge", "--use", **variables).stdout
    assert NAME in herder("get", "clusters", **variables).stdout
    assert f"Cluster/{NAME}" in herder("describe", "cluster", NAME, **variables).stdout
    assert herder("kubeconfig", NAME, **variables).stdout
    nodes = subprocess.run(
        [peer("kubectl"), "get", "nodes", "-o", "name"],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"node/{NAME}-servers" in nodes.stdout


def test_delete_asks_on_a_terminal(environment: dict[str, str]) -> None:
    terminal = Terminal("delete", "cluster", NAME, **environment)
    terminal.read_until("[y/N]")
    terminal.type("n\n")
    assert terminal.exit_status() == 1
    assert f"Delete cluster {NAME} in namespace fleet-default" in terminal.output
    assert NAME in herder("get", "clusters", **environment).stdout


def test_a_busy_port_is_explained(directory: Path, environment: dict[str, str], tmp_path: Path) -> None:
    server = yaml.safe_load((directory / "kubeconfig").read_text())["clusters"][0]["cluster"]["server"]
    listen = server.removeprefix("https://")
    for detach in ((), ("--detach",)):
        output = expect_failure("up", *detach, "--data-dir", tmp_path / "other", "--listen", listen)
        assert re.search(rf"--listen {listen}: the port is in use by process \d+ \(\S+\)", output)
        assert "choose another port" in output


def test_data_in_use_is_explained(directory: Path) -> None:
    output = expect_failure("up", "--detach", "--data-dir", directory, "--listen", "127.0.0.1:0")
    assert f"stop it with: herder down --data-dir {directory}" in output


def test_up_is_quiet_on_a_terminal_and_says_what_to_type(tmp_path: Path) -> None:
    flags = ("--data-dir", tmp_path, "--listen", "127.0.0.1:0")
    with host_shutdown(tmp_path):
        terminal = Terminal("up", *flags)
        terminal.read_until("Press Ctrl-C")
        os.kill(terminal.pid, signal.SIGINT)
        assert terminal.exit_status() == 0
    lines = [line for line in terminal.output.replace("\r", "").splitlines() if line and line != "^C"]
    assert lines[0].startswith("Herder serves the Kubernetes API at https://127.0.0.1:")
    assert [line.split("#")[0].strip() for line in lines[1:5]] == [
        f"export KUBECONFIG={tmp_path}/kubeconfig",
        "herder create cluster meadow",
        "herder get clusters",
        "herder store backup FILE",
    ]
    assert lines[5:] == ["Press Ctrl-C to stop. All acknowledged writes are on disk.", "stopped"]


def test_down_stops_the_server(tmp_path: Path) -> None:
    flags = ("--no-machines", "--no-gateway", "--no-runner", "--listen", "127.0.0.1:0")
    welcome = herder("up", "--detach", "--data-dir", tmp_path, *flags).stdout
    assert "herder get clusters" in welcome
    assert "herder create cluster" not in welcome, "nothing could create its machines"
    assert "stopped (process " in herder("down", "--data-dir", tmp_path).stdout
    eventually(lambda: not (tmp_path / "kubeconfig").exists() or None, "the kubeconfig is removed")
    assert "no server uses" in expect_failure("down", "--data-dir", tmp_path)


def test_the_systemd_unit_runs_the_same_command() -> None:
    flags = ("--data-dir", "/srv/herder", "--in-memory", "--set", "history-retention=1h", "--no-gateway")
    unit = herder("up", "--systemd-unit", *flags).stdout
    assert f"ExecStart={HERDER} up {' '.join(flags)}\n" in unit
    assert "Type=notify\n" in unit
    assert "KillMode=process\n" in unit, "machines outlive the manager"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(shell: str) -> None:
    assert "_HERDER_COMPLETE" in herder("completion", shell).stdout


def test_commands_are_completed() -> None:
    """The request that the script of bash makes, after `herder cr<TAB>` and `herder get --al<TAB>`."""

    def completed(words: str, position: int) -> list[str]:
        variables = {"_HERDER_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(position)}
        return [line.partition(",")[2] for line in herder(**variables).stdout.splitlines()]

    assert completed("herder cr", 1) == ["create"]
    assert completed("herder get pods --al", 3) == ["--all-namespaces"]


def test_an_export_of_rancher_is_converted(tmp_path: Path) -> None:
    file = tmp_path / "export.yaml"
    cluster = {
        "apiVersion": "provisioning.cattle.io/v1",
        "kind": "Cluster",
        "metadata": {"name": "prod", "namespace": "fleet-default", "finalizers": ["example.com/hold"]},
        "spec": {"kubernetesVersion": "v1.36.3+k3s1", "rkeConfig": {}},
    }
    file.write_text(yaml.safe_dump(cluster))
    result = herder("convert", "-f", file)
    converted = yaml.safe_load(result.stdout)
    assert converted["metadata"] == {"name": "prod", "namespace": "fleet-default"}
    assert "Dropped:\n  Cluster prod metadata.finalizers[example.com/hold]: " in result.stderr
    assert "Kept:\n  Cluster prod spec.kubernetesVersion: done; Kubernetes version" in result.stderr
    file.write_text("a: [b")
    assert "export.yaml: invalid YAML (line 1)" in expect_failure("convert", "-f", file)


def test_the_quick_start_of_the_readme_can_be_pasted(tmp_path: Path) -> None:
    """All commands after the setup, in one shell without a terminal, as they are but for the port."""
    text = (Path(__file__).parents[3] / "README.md").read_text()
    block = text.partition("## Quick start")[2].partition("```sh\n")[2].partition("```")[0]
    setup, path, *commands = block.splitlines()
    assert (setup, path) == ("make setup", "export PATH=$PWD/.venv/bin:$PATH")
    assert commands[0] == "herder up --detach"
    commands[0] += f" --listen 127.0.0.1:{free_port()}"
    removed = ("KUBECONFIG", "XDG_STATE_HOME")
    variables = {name: value for name, value in os.environ.items() if name not in removed}
    variables |= {"HOME": str(tmp_path), "HERDER_DATA_DIR": str(tmp_path / "data")}
    variables["PATH"] = f"{HERDER.parent}:{variables['PATH']}"
    with host_shutdown(tmp_path / "data"):
        shell = ["bash", "-e", "-c", "\n".join(commands)]
        done = subprocess.run(
            shell, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=180, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("cluster meadow is ready") == 3
    assert "cluster meadow is deleted" in done.stdout
    assert done.stdout.count("v1.36.3+herder1") >= 6, "versions of machines and nodes"
    assert "stopped (process" in done.stdout
