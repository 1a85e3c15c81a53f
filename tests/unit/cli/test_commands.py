"""What each word says about itself, and to those who mistype it."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from herder.engine.meta.kinds import GroupVersionResource
from tests.support.engines import Engine, unique
from tests.unit.cli.commands import herder, refused

HELP = """\
Usage: herder [OPTIONS] COMMAND [ARGS]...

  Provision Kubernetes clusters and manage their machines.

  Run `herder COMMAND --help` for the options and examples of a command.

Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

Commands:
"""


def test_help_names_every_word() -> None:
    shown = herder("--help").stdout
    assert shown.startswith(HELP)
    commands = shown.removeprefix(HELP).partition("\n\n")[0]
    words = [line.split()[0] for line in commands.splitlines() if not line.startswith("   ")]  # others are wrapped
    assert words == [
        "up",
        "run",
        "demo",
        "create",
        "scale",
        "upgrade",
        "delete",
        "get",
        "describe",
        "logs",
        "ssh",
        "scp",
        "import",
        "register",
        "agent",
        "installer",
        "login",
        "token",
        "kubeconfig",
        "users",
        "store",
        "export",
    ]
    for word in words:
        assert herder(word, "--help").stdout.startswith(f"Usage: herder {word}")


@pytest.mark.parametrize(
    ("arguments", "told"),
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
        (["store", "restore", "/nowhere/backup"], "does not exist"),
    ],
)
def test_a_mistake_is_told_without_a_traceback(arguments: list[str], told: str) -> None:
    assert told in refused(*arguments)


def test_a_bad_value_in_the_environment_is_told_at_the_start(tmp_path: Path) -> None:
    told = refused("up", "--data-dir", tmp_path, CATTLE_HISTORY_RETENTION="soon")
    assert "environment: history-retention" in told


def test_a_bad_file_of_settings_is_told(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    for content, told in (
        ("[1]", "must map setting names to strings"),
        ("a: [", "while parsing"),
        ("history-retention: soon", "duration"),
    ):
        file.write_text(content)
        assert told in refused("up", "--data-dir", tmp_path, "--settings", file)


def test_an_address_in_use_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        told = refused("up", "--data-dir", tmp_path, "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert "address already in use" in told.lower()
    assert not (tmp_path / "kubeconfig").exists()


def test_a_server_that_is_not_there_is_told(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "{clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}],"
        " contexts: [{name: c, context: {cluster: c}}], current-context: c}"
    )
    for words in (("get", "pods"), ("export",), ("run",)):
        assert "127.0.0.1:1" in refused(*words, "--kubeconfig", config)


def test_no_kubeconfig_at_all_is_told(tmp_path: Path) -> None:
    told = refused("get", "pods", HOME=str(tmp_path), HERDER_DATA_DIR=str(tmp_path))
    assert "no kubeconfig found; start 'herder up', set KUBECONFIG or pass --kubeconfig" in told


# --- herder get, on both engines -----------------------------------------------------------------------------------


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


def test_get_tells_what_is_not_there(engine: Engine) -> None:
    def told(*arguments: str) -> str:
        return refused("get", *arguments, "--kubeconfig", engine.kubeconfig)

    assert "not found: nobody" in told("ns", "default", "nobody")
    assert 'the server does not have a resource type "nonsense"' in told("nonsense")
    assert "unable to parse requirement" in told("ns", "-l", "a in (")
    done = herder("get", "pods", "-n", "default", "--kubeconfig", engine.kubeconfig)
    assert (done.stdout, done.stderr) == ("", "No pods found in namespace default; use -A for all namespaces\n")


async def test_what_other_users_wrote_does_not_control_the_terminal(engine: Engine) -> None:
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
    shown = await asyncio.to_thread(get, engine, "events", name, "-n", "default")
    assert r"a\x1b]0;title\x07\x1b[2J\rb" in shown
    assert "\x1b" not in shown


def test_machines_that_are_not_there_are_told(engine: Engine, tmp_path: Path) -> None:
    def told(*arguments: str) -> str:
        return refused(*arguments, "--kubeconfig", engine.kubeconfig)

    assert 'machine "nobody" not found in namespace default or fleet-default' in told("ssh", "nobody")
    assert (
        told("ssh", "nobody", "-n", "elsewhere").rstrip().endswith('machine "nobody" not found in namespace elsewhere')
    )
    assert "machine name is empty" in told("ssh", "")
    assert "machine name is empty" in told("scp", str(tmp_path), ":/root")
    assert 'no logs found for machine "nobody"' in told("logs", "machine", "nobody")
