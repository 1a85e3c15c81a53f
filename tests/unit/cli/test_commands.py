"""Help texts, error messages, and `herder get`."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from herder.engine.meta.kinds import GroupVersionResource
from tests.support.engines import Engine, unique
from tests.unit.cli.commands import expect_failure, herder

HELP = """\
Usage: herder [OPTIONS] COMMAND [ARGS]...

  Provision Kubernetes clusters and manage their machines.

  Run `herder COMMAND --help` for the options and examples of a command.

Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

Commands:
"""


def test_help_lists_every_command() -> None:
    output = herder("--help").stdout
    assert output.startswith(HELP)
    commands = output.removeprefix(HELP).partition("\n\n")[0]
    names = [
        line.split()[0] for line in commands.splitlines() if not line.startswith("   ")
    ]  # the others are continuation lines
    assert names == [
        "up",
        "down",
        "run",
        "doctor",
        "support-bundle",
        "demo",
        "create",
        "scale",
        "upgrade",
        "snapshot",
        "rotate",
        "redeploy",
        "rollback",
        "operations",
        "delete",
        "resume",
        "wait",
        "get",
        "describe",
        "logs",
        "ssh",
        "scp",
        "import",
        "register",
        "agent",
        "image",
        "installer",
        "login",
        "token",
        "kubeconfig",
        "logout",
        "users",
        "grant",
        "revoke",
        "version",
        "completion",
        "convert",
        "store",
        "export",
    ]
    for name in names:
        assert herder(name, "--help").stdout.startswith(f"Usage: herder {name}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["uo"], "No such command 'uo'"),
        (["up", "--listen", "nowhere"], "Invalid value for --listen: must be HOST:PORT"),
        (["up", "--listen", "127.0.0.1:99999"], "Invalid value for --listen: must be HOST:PORT"),
        (["up", "--set", "history-retention"], "'history-retention' is not NAME=VALUE"),
        (["up", "--set", "nonsense=1"], 'flag: no setting named "nonsense"'),
        (["up", "--set", "history-retention=soon"], "must be a duration"),
        (["up", "--settings", "/nowhere/settings"], "No such file"),
        (["run", "--kubeconfig", "/nowhere/config"], "kubeconfig /nowhere/config: No such file"),
        (["run", "--in-cluster"], "not in a pod"),
        (["run", "--kubeconfig", "x", "--metrics-listen", "x"], "Invalid value for --metrics-listen"),
        (["get"], "Missing argument 'RESOURCE'"),
        (["get", "pods", "--kubeconfig", "/nowhere/config"], "kubeconfig /nowhere/config: No such file"),
        (["get", "pods", "-o", "xml"], "'xml' is not one of"),
        (["describe", "cluster"], "Missing argument 'NAME'"),
        (["describe", "cluster", "c", "--kubeconfig", "/nowhere/config"], "kubeconfig /nowhere/config: No such file"),
        (["export", "--kubeconfig", "/nowhere/config"], "kubeconfig /nowhere/config: No such file"),
        (["store", "backup", "/tmp/x", "--data-dir", "/nowhere"], "/nowhere/store contains no store; check --data-dir"),
        (["store", "restore", "/nowhere/backup"], "backup /nowhere/backup: no such file"),
    ],
)
def test_errors_are_reported_without_a_traceback(arguments: list[str], message: str) -> None:
    assert message in expect_failure(*arguments)


def test_an_invalid_value_in_the_environment_is_reported_at_the_start(tmp_path: Path) -> None:
    message = expect_failure("up", "--data-dir", tmp_path, CATTLE_HISTORY_RETENTION="soon")
    assert "environment: history-retention" in message


def test_an_invalid_settings_file_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    for content, message in (
        ("[1]", "must map setting names to strings"),
        ("a: [", "while parsing"),
        ("history-retention: soon", "duration"),
    ):
        file.write_text(content)
        assert message in expect_failure("up", "--data-dir", tmp_path, "--settings", file)


def test_an_address_in_use_is_reported(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        message = expect_failure("up", "--data-dir", tmp_path, "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert "the port is in use by process" in message
    assert not (tmp_path / "kubeconfig").exists()


def test_an_unreachable_server_is_reported(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "{clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}],"
        " contexts: [{name: c, context: {cluster: c}}], current-context: c}"
    )
    for arguments in (("get", "pods"), ("export",), ("run",)):
        assert "127.0.0.1:1" in expect_failure(*arguments, "--kubeconfig", config)


def test_a_missing_kubeconfig_is_reported(tmp_path: Path) -> None:
    message = expect_failure("get", "pods", HOME=str(tmp_path), HERDER_DATA_DIR=str(tmp_path))
    assert "no kubeconfig found; start 'herder up', set KUBECONFIG or pass --kubeconfig" in message


# --- herder get, on both engines ------------------------------------------------------------------------------------


def get(engine: Engine, *arguments: str) -> str:
    return herder("get", *arguments, "--kubeconfig", engine.kubeconfig).stdout


def test_get_shows_the_servers_own_tables(engine: Engine) -> None:
    lines = get(engine, "namespaces", "default", "kube-system").splitlines()
    assert lines[0].split() == ["NAME", "STATUS", "AGE"]
    assert [line.split()[:2] for line in lines[1:]] == [["default", "Active"], ["kube-system", "Active"]]
    wide = get(engine, "svc", "-A", "-o", "wide").splitlines()
    assert wide[0].split()[0] == "NAMESPACE"
    assert wide[0].split()[-1] == "SELECTOR"
    assert any(line.split()[:2] == ["default", "kubernetes"] for line in wide)


def test_get_shows_whole_objects(engine: Engine) -> None:
    assert get(engine, "ns", "default", "-o", "name") == "namespaces/default\n"
    assert "kind: Namespace\n" in get(engine, "ns", "default", "-o", "yaml")
    assert '"kind": "List"' in get(engine, "ns", "-o", "json")


def test_get_reports_missing_objects(engine: Engine) -> None:
    def error(*arguments: str) -> str:
        return expect_failure("get", *arguments, "--kubeconfig", engine.kubeconfig)

    assert "not found: nobody" in error("ns", "default", "nobody")
    assert 'the server does not have a resource type "nonsense"' in error("nonsense")
    assert "unable to parse requirement" in error("ns", "-l", "a in (")
    result = herder("get", "pods", "-n", "default", "--kubeconfig", engine.kubeconfig)
    assert (result.stdout, result.stderr) == ("", "No pods found in namespace default; use -A for all namespaces\n")


async def test_get_escapes_control_characters_of_objects(engine: Engine) -> None:
    client, name = engine.client(), unique("screen")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "default"},
        "involvedObject": {"kind": "Namespace", "name": "default", "namespace": "default"},
        "message": "a\x1b]0;title\x07\x1b[2J\rb",
        "type": "Normal",
        "reason": "Tested",
    }
    await client.create(GroupVersionResource("", "v1", "events"), event, namespace="default")
    await client.close()
    output = await asyncio.to_thread(get, engine, "events", name, "-n", "default")
    assert r"a\x1b]0;title\x07\x1b[2J\rb" in output
    assert "\x1b" not in output


def test_missing_machines_are_reported(engine: Engine, tmp_path: Path) -> None:
    def error(*arguments: str) -> str:
        return expect_failure(*arguments, "--kubeconfig", engine.kubeconfig)

    assert 'machine "nobody" not found in namespace default or fleet-default' in error("ssh", "nobody")
    assert (
        error("ssh", "nobody", "-n", "elsewhere").rstrip().endswith('machine "nobody" not found in namespace elsewhere')
    )
    assert "machine name is empty" in error("ssh", "")
    assert "machine name is empty" in error("scp", str(tmp_path), ":/root")
    assert 'no logs found for machine "nobody"' in error("logs", "machine", "nobody")
