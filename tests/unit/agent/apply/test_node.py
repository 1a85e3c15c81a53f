"""The agent's effects on a node: files, commands, interlock and plan copies; and invalid configuration."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from herder.agent import config
from herder.agent.apply import files
from herder.agent.apply.executor import keep_plan
from herder.agent.apply.instruction import InstructionRunner
from herder.agent.apply.interlock import Interlock
from herder.agent.core import outputs
from herder.agent.core.plan import File, PlanError, parse
from herder.agent.log import Log
from herder.agent.secret import transport
from tests.support.manager.node_agents import write_private
from tests.unit.agent.nodes import instruction


def file(path: Path, content: str = "aGVsbG8=", **more: object) -> File:
    values: dict[str, object] = {"directory": False, "uid": 0, "gid": 0, "permissions": "", "delete": False, **more}
    return File(str(path), content, **values)  # type: ignore[arg-type]


# --- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("{", "the plan is not valid JSON"),
        ("[]", "plan: expected an object, found a list"),
        ('{"files": [{"path": 1}]}', r"plan.files\[0\].path: expected text, found a whole number"),
        ('{"instructions": [{"args": [1]}]}', r"plan.instructions\[0\].args\[0\]: expected text"),
        ('{"probes": {"p": {"httpGet": []}}}', "plan.probes.p.httpGet: expected an object, found a list"),
        (
            '{"periodicInstructions": [{"periodSeconds": true}]}',
            "periodSeconds: expected a whole number, found true or false",
        ),
    ],
)
def test_an_invalid_plan_names_the_field(raw: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        parse(raw.encode())


def test_null_means_absent() -> None:
    assert parse(b'{"files": null, "instructions": [{"args": null, "env": null}]}').instructions[0].args == []


# --- times ------------------------------------------------------------------------------------------------------------


def test_times_use_the_unix_date_format() -> None:
    assert outputs.unix_date(1794725844) == "Sun Nov 15 06:57:24 UTC 2026"
    assert outputs.unix_date(1793926644) == "Fri Nov  6 00:57:24 UTC 2026"
    assert outputs.parse_unix_date("Fri Nov  6 00:57:24 UTC 2026") == 1793926644
    assert outputs.parse_unix_date("yesterday") is None


# --- files ------------------------------------------------------------------------------------------------------------


def test_an_up_to_date_file_is_not_written(tmp_path: Path) -> None:
    files.apply([file(tmp_path / "f")])
    before = (tmp_path / "f").stat()
    files.apply([file(tmp_path / "f", permissions="0644")])
    after = (tmp_path / "f").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert stat.S_IMODE(after.st_mode) == 0o644


def test_writing_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    files.apply([file(tmp_path / "link")])
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "hello"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"content": "?"}, "its content is not base64"),
        ({"permissions": "rw"}, "its permissions are not an octal number: 'rw'"),
    ],
)
def test_an_invalid_file_is_named_in_the_error(tmp_path: Path, fields: dict[str, str], message: str) -> None:
    with pytest.raises(files.FileError, match=f"{tmp_path}/f: {message}"):
        files.apply([file(tmp_path / "f", **fields)])


def test_an_unprivileged_agent_owns_the_files_it_writes() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to change the user")
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o777)
        child = os.fork()
        if child == 0:
            os.setgid(65534)
            os.setuid(65534)
            try:
                files.apply([file(Path(directory, "f"), uid=0, gid=0)])
                os._exit(0)
            except BaseException:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert Path(directory, "f").stat().st_uid == 65534


# --- commands ---------------------------------------------------------------------------------------------------------


def test_a_command_is_killed_with_its_children_on_timeout(tmp_path: Path) -> None:
    finished = InstructionRunner(str(tmp_path / "s")).run(str(tmp_path), instruction("echo a; sleep 600", timeout=1), 1)
    assert (finished.exit_code, finished.stdout) == (-1, b"a\n")
    assert finished.error == "did not end within 1 s, and was ended"


def test_the_start_of_stdout_and_the_end_of_stderr_are_kept(tmp_path: Path) -> None:
    script = "head -c 3000000 /dev/zero; echo first >&2; head -c 2000000 /dev/zero >&2; echo last >&2; exit 1"
    finished = InstructionRunner(str(tmp_path / "s")).run(str(tmp_path), instruction(script), 1)
    assert len(finished.stdout) == 1 << 20
    assert finished.stderr.endswith(b"last\n")
    assert len(finished.stderr) == 1 << 20


def test_a_running_instruction_is_killed_at_shutdown(tmp_path: Path) -> None:
    executor = InstructionRunner(str(tmp_path / "s"))
    fifo = tmp_path / "started"
    os.mkfifo(fifo)
    thread = threading.Thread(target=executor.run, args=(str(tmp_path), instruction(f"echo > {fifo}; sleep 600"), 1))
    thread.start()
    fifo.read_text()
    executor.end()
    thread.join(30)
    assert not thread.is_alive()


# --- interlock -------------------------------------------------------------------------------------------------------


def test_a_pending_restart_delays_plans_for_five_minutes_at_most(tmp_path: Path) -> None:
    interlock, pending = Interlock(str(tmp_path)), tmp_path / "restart-pending"
    pending.touch()
    assert "300 s at most" in interlock.enter(1000.0)
    assert "1 s at most" in interlock.enter(1299.0)
    assert interlock.enter(1301.0) == ""
    assert not pending.exists()
    assert (tmp_path / "applyinator-active").exists()
    interlock.leave()
    assert list(tmp_path.iterdir()) == []


def test_a_pending_restart_delays_plans_while_its_process_runs(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "600"])
    (tmp_path / "restart-pending").write_text(json.dumps({"pid": process.pid}))
    interlock = Interlock(str(tmp_path))
    assert f"waiting for process {process.pid}" in interlock.enter(1000.0)
    process.kill()
    process.wait()
    assert interlock.enter(1000.0) == ""


@pytest.mark.parametrize(
    "content", ["Sun Nov 15 06:57:24 UTC 2026", '{"pid": 1, "boot": "another"}', '{"pid": 999999999}']
)
def test_files_of_a_killed_agent_are_deleted(tmp_path: Path, content: str) -> None:
    (tmp_path / "applyinator-active").write_text(content)
    Interlock(str(tmp_path)).clean()
    assert list(tmp_path.iterdir()) == []


# --- plan copies -----------------------------------------------------------------------------------------------------


def test_the_last_64_applied_plans_are_kept_without_repetition(tmp_path: Path) -> None:
    for number in range(70):
        for again in range(2):
            keep_plan(str(tmp_path), f"20260101-{number:06d}{again}", json.dumps({"n": number}).encode(), str(number))
    kept = sorted(tmp_path.iterdir())
    assert len(kept) == 64
    assert json.loads(kept[-1].read_text()) == {"Plan": {"n": 69}, "Checksum": "69"}


# --- configuration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("remoteEnabled: false\n", "remoteEnabled and localEnabled are both false"),
        ("remoteEnabled: true\n", "connectionInfoFile is missing"),
        ("localEnabled: maybe\n", "localEnabled must be true or false"),
        ("localEnabled: true\nworkDirectory: 7\n", "workDirectory must be a string"),
        ("a: &b\n", "line 1"),
    ],
)
def test_an_invalid_configuration_is_rejected_with_the_reason(tmp_path: Path, content: str, message: str) -> None:
    write_private(tmp_path / "config.yaml", content)
    with pytest.raises(config.ConfigError, match=message):
        config.load(str(tmp_path / "config.yaml"))


def test_files_readable_by_others_are_rejected(tmp_path: Path) -> None:
    write_private(tmp_path / "connection.json", "{}")
    (tmp_path / "connection.json").chmod(0o640)
    with pytest.raises(config.ConfigError, match="has mode 0640 instead of 0600; run: chmod 0600"):
        config.load_connection(str(tmp_path / "connection.json"))


def test_a_missing_connection_field_is_named(tmp_path: Path) -> None:
    write_private(tmp_path / "connection.json", '{"kubeConfig": "x", "namespace": "n"}')
    with pytest.raises(config.ConfigError, match="secretName is missing"):
        config.load_connection(str(tmp_path / "connection.json"))


@pytest.mark.parametrize(
    ("arguments", "status", "output"),
    [
        (["version"], 0, "herder-agent version"),
        (["help"], 0, "validate-connection FILE"),
        (["nonsense"], 1, "unknown command 'nonsense'"),
        (["validate-connection"], 1, "usage: herder-agent validate-connection FILE"),
        (["validate-connection", "/nowhere.json"], 1, "/nowhere.json: cannot read it"),
        (["sentinel"], 1, "/nowhere.yaml: cannot read it"),
    ],
)
def test_command_output_and_exit_status(arguments: list[str], status: int, output: str) -> None:
    environment = {**os.environ, "CATTLE_AGENT_CONFIG": "/nowhere.yaml"}
    done = subprocess.run(
        [sys.executable, "-m", "herder.agent", *arguments], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == status
    assert output in done.stdout + done.stderr


def test_unknown_log_levels_are_rejected() -> None:
    with pytest.raises(ValueError, match="CATTLE_LOGLEVEL: unknown level 'loud'; use trace, debug"):
        Log("loud")


# --- proxies ---------------------------------------------------------------------------------------------------------

PROXY = {"HTTPS_PROXY": "http://proxy.test:3128", "NO_PROXY": "10.0.0.0/8,.internal.test,exact.test,ported.test:8443"}


@pytest.mark.parametrize(
    ("url", "uses_proxy"),
    [
        ("https://manager.test", True),
        ("http://manager.test", False),
        ("https://127.0.0.1:6443", False),
        ("https://localhost", False),
        ("https://10.1.2.3", False),
        ("https://11.1.2.3", True),
        ("https://a.internal.test", False),
        ("https://internal.test", False),
        ("https://exact.test", False),
        ("https://sub.exact.test", False),
        ("https://notexact.test", True),
        ("https://ported.test:8443", False),
        ("https://ported.test", True),
    ],
)
def test_proxies_follow_the_environment(url: str, uses_proxy: bool) -> None:
    assert bool(transport.proxy_for(url, PROXY)) is uses_proxy
    assert transport.proxy_for(url, {**PROXY, "NO_PROXY": "*"}) == ""
