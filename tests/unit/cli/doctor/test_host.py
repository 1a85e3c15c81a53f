"""`herder doctor` of a host: each check that fails, and the command on this host."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from herder.app.doctor import host, machines
from herder.app.doctor.finding import Finding, Status, failed, is_fit, ok, warning
from herder.engine.runner.isolation import UNAVAILABLE
from herder.machine.errors import PreCreateFailed
from herder.machine.host.local.cgroups import Tree
from herder.machine.host.process.kind import ProcessKind
from tests.support.embedded import HERDER, Embedded

OK, WARNING, FAILED = Status.OK, Status.WARNING, Status.FAILED
NOW = datetime(2026, 11, 19, tzinfo=UTC)


def doctor(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HERDER, "doctor", *arguments], capture_output=True, text=True, check=False, timeout=120, env=os.environ
    )


def statuses(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["ok"] == (done.returncode == 0)
    return {each["check"]: each["status"] for each in document["checks"]}


def expect(finding: Finding, status: Status, text: str) -> None:
    """Everything that is not in order has advice."""
    assert finding.status is status, finding
    assert text in f"{finding.message}; {finding.advice}"
    assert (finding.advice != "") == (status is not OK)


# --- each check -----------------------------------------------------------------------------------------------------


def test_missing_requirements_decide() -> None:
    assert is_fit([ok("a", "b"), warning("a", "b")])
    assert not is_fit([ok("a", "b"), failed("a", "b")])
    assert is_fit([failed("a", "b").as_warning()])


def test_python() -> None:
    expect(host.check_python((3, 11, 0), "linux"), OK, "3.11.0")
    expect(host.check_python((3, 10, 9), "linux"), FAILED, "Python 3.11 or newer")
    expect(host.check_python((3, 13, 0), "darwin"), FAILED, "on Linux")


def test_sqlite() -> None:
    expect(host.check_sqlite((3, 40, 1)), OK, "3.40.1")
    expect(host.check_sqlite((3, 31, 0)), FAILED, "3.37 or newer")


def test_kernel() -> None:
    expect(host.check_kernel("5.12.0-generic"), OK, "5.12.0")
    expect(host.check_kernel("5.4.0"), WARNING, "5.12 or newer")
    expect(host.check_kernel("unknown"), WARNING, "Linux unknown")


def test_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    existing = host.existing_directory(tmp_path / "a" / "b")
    assert existing == tmp_path
    expect(host.check_data_directory(tmp_path / "a" / "b", existing), OK, "can be created")
    expect(host.check_data_directory(tmp_path, tmp_path), OK, "is writable")
    monkeypatch.setattr(host.os, "geteuid", lambda: 12345)
    expect(host.check_data_directory(tmp_path, tmp_path), FAILED, "belongs to another user")
    monkeypatch.setattr(host.os, "access", lambda *_: False)
    expect(host.check_data_directory(tmp_path, tmp_path), FAILED, "not writable")
    assert not list(tmp_path.iterdir())


def test_disk(tmp_path: Path) -> None:
    expect(host.check_disk(tmp_path, 6 * 2**30), OK, "6.0 GiB")
    expect(host.check_disk(tmp_path, 2 * 2**30), WARNING, "2.0 GiB")
    expect(host.check_disk(tmp_path, 2**29), FAILED, "at least 1 GiB")


def test_memory() -> None:
    expect(host.check_memory("MemTotal: 1 kB\nMemAvailable:   2097152 kB\n"), OK, "2.0 GiB")
    expect(host.check_memory("MemAvailable: 524288 kB"), WARNING, "0.5 GiB")
    expect(host.check_memory("MemAvailable: 1024 kB"), FAILED, "256 MiB")
    expect(host.check_memory(""), WARNING, "MemAvailable")


def test_open_files() -> None:
    expect(host.check_open_files(-1), OK, "no limit")
    expect(host.check_open_files(1024), WARNING, "LimitNOFILE")


def test_port(tmp_path: Path) -> None:
    expect(host.check_port("127.0.0.1", 0, tmp_path), OK, "free")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        expect(host.check_port("127.0.0.1", port, tmp_path), FAILED, f"in use by process {os.getpid()}")
    expect(host.check_port("192.0.2.1", 7443, tmp_path), FAILED, "does not have the address")


def test_clock() -> None:
    expect(host.check_clock(NOW, True), OK, "synchronized")
    expect(host.check_clock(NOW, None), OK, "2026-11-19T00:00:00Z")
    expect(host.check_clock(NOW, False), WARNING, "not synchronized")
    expect(host.check_clock(datetime(1970, 1, 1, tzinfo=UTC), True), FAILED, "set the clock")


def test_programs() -> None:
    expect(host.check_programs(lambda name: f"/usr/bin/{name}"), OK, "ssh")
    expect(host.check_programs(lambda name: None if name == "scp" else name), WARNING, "herder scp will not work")


def test_cgroups(tmp_path: Path) -> None:
    unified = Tree("unified", "", tmp_path / "herder")
    version_1 = [Tree("cpu", "cpu,cpuacct", tmp_path / "cpu"), Tree("memory", "memory", tmp_path / "memory"), unified]
    expect(machines.check_controllers([unified]), WARNING, "cpu and memory are not delegated")
    expect(machines.check_controllers(version_1), WARNING, "cgroup v1")
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory\n")
    expect(machines.check_controllers([unified]), OK, "cgroup v2")


def test_overlayfs_and_inotify() -> None:
    expect(machines.check_overlay("nodev\tproc\nnodev\toverlay\n\text4\n"), OK, "present")
    expect(machines.check_overlay("nodev\tproc\n"), WARNING, "modprobe overlay")
    expect(machines.check_inotify("1024\n"), OK, "1024")
    expect(machines.check_inotify("128\n"), WARNING, "enough for 6 machines")
    expect(machines.check_inotify(""), WARNING, "cannot read")


async def test_jobs_need_isolation(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> None:
        return None

    monkeypatch.setattr(machines, "detect", nothing)
    expect(await machines.check_jobs(), FAILED, UNAVAILABLE)
    with_machines = {finding.check: finding.status for finding in await machines.examine_machines({"process"})}
    without = {finding.check: finding.status for finding in await machines.examine_machines(frozenset())}
    assert (with_machines["jobs"], without["jobs"]) == (FAILED, WARNING)


async def test_process_machines_need_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    async def prevented(_: ProcessKind) -> str:
        return "unshare: not permitted"

    monkeypatch.setattr(ProcessKind, "_probe", prevented)
    expect(await machines.check_process_machines(), FAILED, "sysctl user.max_user_namespaces")
    found = {finding.check: finding.status for finding in await machines.examine_machines({"local"})}
    assert found["process machines"] is WARNING


async def test_process_machines_of_root_can_do_without_user_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    async def prevented(kind: ProcessKind) -> str:
        return "unshare: not permitted" if kind.has_user_namespaces else ""

    monkeypatch.setattr(ProcessKind, "_probe", prevented)
    monkeypatch.setattr("herder.machine.host.process.kind._owner", lambda: [65534, 65534])
    expect(await machines.check_process_machines(), WARNING, "user.max_user_namespaces")


async def test_local_machines_need_what_their_driver_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("herder.machine.host.local.rootless.needed", lambda: True)
    monkeypatch.setattr("herder.machine.host.local.rootless._subordinate", _no_range)
    monkeypatch.setattr("herder.machine.host.local.kind.shutil.which", lambda *_, **__: None)
    found = {finding.check: finding for finding in machines.check_local_machines()}
    expect(found["local machines: user namespace"], FAILED, "usermod --add-subuids")
    expect(found["local machines: programs"], FAILED, "install the package iproute2")
    required = {each.check: each.status for each in await machines.examine_machines({"local"})}
    assert required["local machines: programs"] is FAILED


def _no_range(kind: str) -> tuple[int, int]:
    raise PreCreateFailed(f"/etc/sub{kind} has no range", f"run as root: usermod --add-sub{kind}s 100000-165535 user")


# --- the command ----------------------------------------------------------------------------------------------------


def test_this_host_is_examined(tmp_path: Path) -> None:
    done = doctor("--data-dir", tmp_path / "new", "--listen", "127.0.0.1:0", "-o", "json")
    found = statuses(done)
    assert done.returncode == 0, done.stdout
    assert {"python", "port", "clock", "jobs", "process machines", "local machines: cgroups"} <= set(found)
    assert not list(tmp_path.iterdir()), "it changes nothing"


def test_a_missing_requirement_is_the_exit_status(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = f"127.0.0.1:{server.getsockname()[1]}"
        done = doctor("--data-dir", tmp_path, "--listen", listen, "--driver", "none")
    assert done.returncode == 1
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("failed")]
    assert line.startswith(f"failed    port: --listen {listen}: the port is in use by process {os.getpid()}")
    assert "Traceback" not in done.stderr


def test_a_host_without_user_namespaces_is_found_by_trial(tmp_path: Path) -> None:
    namespace = ["unshare", "--user", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run([*namespace, "true"], check=False).returncode:
        pytest.skip("needs a user namespace, in which user namespaces can be forbidden")
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
    command = [
        *namespace,
        "sh",
        "-c",
        forbid,
        "sh",
        HERDER,
        "doctor",
        "--data-dir",
        tmp_path,
        "--listen",
        "127.0.0.1:0",
    ]
    done = subprocess.run([*command, "-o", "json"], capture_output=True, text=True, check=False, timeout=120)
    found = statuses(done)
    assert done.returncode == 1
    assert (found["jobs"], found["process machines"]) == ("failed", "failed")
    assert "sysctl user.max_user_namespaces" in done.stdout


def test_yaml_has_the_same_content_as_the_lines(tmp_path: Path) -> None:
    flags = ("--data-dir", tmp_path, "--listen", "127.0.0.1:0")
    document = yaml.safe_load(doctor(*flags, "-o", "yaml").stdout)
    lines = doctor(*flags).stdout.splitlines()
    assert len(lines) == len(document["checks"])
    for line, each in zip(lines, document["checks"], strict=True):
        assert line.startswith(f"{each['status']:<7}   {each['check']}: ")


def test_the_port_of_the_running_manager_is_no_problem(tmp_path: Path) -> None:
    with Embedded(tmp_path) as server:
        listen = server.url.removeprefix("https://")
        found = statuses(doctor("--data-dir", tmp_path, "--listen", listen, "--driver", "none", "-o", "json"))
    assert found["port"] == "ok"


def test_an_ordinary_user_without_subordinate_ids_is_told_so() -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("becoming an ordinary user needs root and setpriv")
    command = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", sys.executable, "-c", _AS_USER]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ, cwd="/")
    if "PermissionError" in done.stderr or "ModuleNotFoundError" in done.stderr or not done.stdout:
        pytest.skip("ordinary users cannot read this Python")
    assert "failed local machines: user namespace: /etc/subuid has no range of 65536 ids for 12345" in done.stdout


_AS_USER = """
from herder.app.doctor.machines import check_local_machines
for finding in check_local_machines():
    print(finding.status, finding.check + ":", finding.message)
"""


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--webhook-url", "https://10.0.0.5:9443"), "--webhook-url is for a cluster; pass --kubeconfig"),
        (("--kubeconfig", "x", "--listen", "127.0.0.1:0"), "--listen is for a host; omit --kubeconfig"),
        (("--kubeconfig", "x", "--in-cluster"), "mutually exclusive"),
        (("--listen", "nonsense"), "must be HOST:PORT"),
    ],
)
def test_flags_that_do_not_belong_together_are_refused(flags: tuple[str, ...], message: str) -> None:
    done = doctor(*flags)
    assert done.returncode == 2
    assert message in done.stderr
