"""Containers run as isolated processes, are stopped with everything they started, and their outcome is recorded."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

import herder
from herder.engine.runner.isolation import HostUser, Isolation, container_config, detect
from herder.engine.runner.logs import LogOptions, read
from herder.engine.runner.pod.attempt import Attempt, Outcome
from herder.engine.runner.pod.volumes import Volumes
from tests.unit.engine.runner.symlink_race import swap_with_symlink

if TYPE_CHECKING:
    from herder.engine.client.client import Client
    from herder.engine.runner.pod.sources import Sources

ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


@pytest.fixture
def work_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="attempts-") as name:
        yield Path(name)


async def detect_isolation(work_dir: Path) -> Isolation:
    found = await detect(work_dir, HostUser.named())
    assert found is not None
    return found


class RunResult:
    def __init__(self, outcome: Outcome, output: str) -> None:
        self.outcome = outcome
        self.output = output


async def run(work_dir: Path, script: str, *, isolation: Isolation | None = None, **config: Any) -> RunResult:
    user = HostUser.named()
    chosen = isolation or await detect_isolation(work_dir)
    name = str(len(list(work_dir.iterdir())))
    config_of_container = container_config(["sh", "-c", script], ENVIRONMENT, isolation=chosen, user=user, **config)
    attempt = await Attempt.start(work_dir / name, config_of_container)
    outcome = await attempt.ended()
    assert outcome is not None
    text = b"".join([chunk async for chunk in read(attempt.log, LogOptions(), ended=lambda: True)])
    return RunResult(outcome, text.decode())


def volume(work_dir: Path, name: str, content: str) -> str:
    path = work_dir / name
    path.mkdir()
    (path / "value").write_text(content)
    return str(path)


async def test_volumes_appear_at_paths_that_the_host_does_not_have(work_dir: Path) -> None:
    paths = ["/run/secrets/machine", "/var/run/secrets/kubernetes.io/serviceaccount", "/etc/rancher/ssl", "/new/place"]
    mounts = [
        {"source": volume(work_dir, str(number), path), "target": path, "read_only": True}
        for number, path in enumerate(paths)
    ]
    before = {path: os.path.exists(path) for path in paths}
    result = await run(work_dir, "; ".join(f"cat {path}/value; echo" for path in paths), mounts=mounts)
    assert result.output.split() == paths
    assert {path: os.path.exists(path) for path in paths} == before


async def test_a_file_may_be_mounted_over_a_file_of_the_host(work_dir: Path) -> None:
    source = work_dir / "hosts"
    source.write_text("mine\n")
    source.chmod(0o644)
    mounts = [{"source": str(source), "target": "/etc/hosts", "read_only": True}]
    result = await run(work_dir, "cat /etc/hosts; ls /etc/passwd", mounts=mounts)
    assert result.output == "mine\n/etc/passwd\n"


async def test_a_container_runs_with_its_own_ids_and_no_capabilities(work_dir: Path) -> None:
    result = await run(
        work_dir, "id -u; id -g; grep -E 'CapEff|NoNewPrivs' /proc/self/status", container_ids=(1000, 2000)
    )
    assert result.output.split() == ["1000", "2000", "CapEff:", "0000000000000000", "NoNewPrivs:", "1"]


async def test_root_of_a_container_has_no_capabilities(work_dir: Path) -> None:
    result = await run(work_dir, "id -u; grep -E '^Cap|NoNewPrivs' /proc/self/status", container_ids=(0, 0))
    fields = result.output.split()
    assert fields[0] == "0"
    assert dict(zip(fields[1::2], fields[2::2], strict=True)) == {
        "NoNewPrivs:": "1",
        **{f"Cap{name}:": "0" * 16 for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")},
    }


async def test_a_mount_point_is_not_created_through_a_symlink_in_a_volume(work_dir: Path) -> None:
    outside = work_dir / "outside"
    outside.mkdir(mode=0o700)
    volume(work_dir, "planted", "x")
    (work_dir / "planted" / "link").symlink_to(outside)
    mounts = [
        {"source": str(work_dir / "planted"), "target": "/data"},
        {"source": volume(work_dir, "inner", "y"), "target": "/data/link/created"},
    ]
    result = await run(work_dir, "true", mounts=mounts)
    assert os.listdir(outside) == []
    assert result.outcome.reason == "ContainerCannotRun"


async def test_a_sub_path_that_becomes_a_symlink_after_the_check_is_not_mounted(work_dir: Path) -> None:
    volume(work_dir, "outside", "of the host")
    (work_dir / "outside").chmod(0o755)
    pod = {"metadata": {}, "spec": {"volumes": [{"name": "v", "emptyDir": {}}]}, "status": {}}
    volumes = Volumes(cast("Client", None), pod, work_dir / "volumes", user=HostUser.named(), node="", address="")
    await volumes.prepare(cast("Sources", None), datetime.now(UTC))
    mounts = volumes.mounts({"volumeMounts": [{"name": "v", "subPath": "a/b", "mountPath": "/data"}]})
    shutil.rmtree(work_dir / "volumes" / "v" / "a")
    (work_dir / "volumes" / "v" / "a").mkdir()
    (work_dir / "volumes" / "v" / "a" / "b").symlink_to(work_dir / "outside")
    result = await run(work_dir, "cat /data/value", mounts=mounts)
    assert result.outcome.reason == "ContainerCannotRun"
    assert "of the host" not in result.output


async def test_no_race_mounts_a_path_outside_of_a_volume(work_dir: Path) -> None:
    for path in ("outside", "outside/b", "planted", "planted/a", "planted/a/b"):
        (work_dir / path).mkdir(mode=0o755)
    (work_dir / "outside" / "b" / "value").write_text("of the host")
    mounts = [
        {"source": str(work_dir / "planted"), "sub_path": "a/b", "target": "/data"},
        {"source": str(work_dir / "planted"), "target": "/planted"},
        {"source": volume(work_dir, "inner", "y"), "target": "/planted/a/created"},
    ]
    with swap_with_symlink(work_dir / "planted" / "a", work_dir / "outside"):
        for _ in range(10):
            assert "of the host" not in (await run(work_dir, "cat /data/value", mounts=mounts)).output
    assert os.listdir(work_dir / "outside") == ["b"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only then the first process may read more than the program")
async def test_the_first_process_opens_nothing_of_a_volume(work_dir: Path) -> None:
    """It runs as root when it opens /dev/null for the program, and a volume may be mounted there."""
    (work_dir / "shadow").write_text("of the host")
    (work_dir / "shadow").chmod(0o600)
    (work_dir / "dev").mkdir()
    (work_dir / "dev" / "null").symlink_to(work_dir / "shadow")
    result = await run(work_dir, "cat", mounts=[{"source": str(work_dir / "dev"), "target": "/dev"}])
    assert (result.outcome.code, result.output) == (0, "")


@pytest.mark.parametrize("target", ["/proc", "/proc/self/task", "/"])
async def test_volumes_cannot_be_mounted_over_proc_or_the_root(work_dir: Path, target: str) -> None:
    """The first process reads there which processes it kills, and writes the ids of the program's user namespace."""
    result = await run(work_dir, "true", mounts=[{"source": volume(work_dir, "v", "x"), "target": target}])
    assert result.outcome.reason == "ContainerCannotRun"
    assert "a volume cannot be mounted there" in result.outcome.message


async def test_the_first_process_imports_nothing_of_a_volume(work_dir: Path) -> None:
    planted = work_dir / "planted"
    planted.mkdir()
    for name in ("warnings", "linecache", "traceback", "tokenize", "encodings"):
        (planted / f"{name}.py").write_text("raise SystemExit(77)")
    mounts = [{"source": str(planted), "target": path} for path in (os.path.dirname(os.__file__), *sys.path[-1:])]
    result = await run(work_dir, "exit 5", mounts=mounts)
    assert result.outcome.code == 5


async def test_a_container_holds_no_file_of_the_runner(work_dir: Path) -> None:
    """This includes the lock of its shim: a program that released it would be considered dead and started again."""
    with (work_dir / "ca.key").open("w") as inherited:
        os.set_inheritable(inherited.fileno(), True)
        result = await run(work_dir, "exec ls /proc/self/fd")
    assert result.output.split() == ["0", "1", "2", "3"]  # descriptor 3 is the directory that ls reads


async def test_a_container_sees_its_own_processes_and_tmp_only(work_dir: Path) -> None:
    with tempfile.NamedTemporaryFile(dir="/tmp") as of_the_host:
        # HOME may be /tmp, and home directories are hidden.
        result = await run(work_dir, "touch /tmp/.own; ls /tmp | wc -l; ls -d /proc/[0-9]* | wc -l", hidden=["/tmp"])
        assert os.path.exists(of_the_host.name)
    files, processes = map(int, result.output.split())
    assert files == 0
    assert processes < 8


async def test_hidden_directories_are_empty_in_the_container(work_dir: Path) -> None:
    (work_dir / "ca.key").write_text("secret")
    work_dir.chmod(0o755)
    result = await run(work_dir, f"cat {work_dir}/ca.key; ls {work_dir}", hidden=[str(work_dir)])
    assert result.outcome.code != 0
    assert "secret" not in result.output


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only then containers are somebody else")
async def test_required_paths_are_visible_in_directories_without_access(work_dir: Path) -> None:
    tool = work_dir / "private" / "tools" / "1.2"
    tool.mkdir(parents=True)
    (tool / "value").write_text("needed\n")
    (tool / "value").chmod(0o644)
    (work_dir / "private" / "tools" / "1").symlink_to("1.2")
    (work_dir / "private" / "tools" / "2").symlink_to("/etc")
    (work_dir / "private" / "letter").write_text("secret")
    script = f"cd {work_dir} && cat private/tools/1.2/value private/tools/1/value && ls -x . private private/tools"
    assert "Permission denied" in (await run(work_dir, f"cat {tool}/value")).output
    result = await run(work_dir, script, needs=[str(tool)])
    assert " ".join(result.output.split()) == "needed needed .: private private: tools private/tools: 1 1.2"
    assert "Read-only file system" in (await run(work_dir, f"touch {tool}/new", needs=[str(tool)])).output


async def test_required_paths_may_be_in_the_hosts_tmp(work_dir: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        result = await run(work_dir, "ls /tmp", needs=[volume(Path(name), "v", "x"), f"{name}/v/value"])
    assert result.output == f"{Path(name).name}\n"


async def test_visible_paths_are_not_mounted_again(work_dir: Path) -> None:
    result = await run(work_dir, "grep -c ' /usr/lib ' /proc/self/mountinfo", needs=["/usr/lib"])
    assert result.output == "0\n"


async def test_a_volume_may_be_mounted_within_a_hidden_directory(work_dir: Path) -> None:
    work_dir.chmod(0o755)
    (work_dir / "ca.key").write_text("secret")
    mounts = [{"source": volume(work_dir, "lent", "shared"), "target": f"{work_dir}/lent"}]
    result = await run(work_dir, f"cat {work_dir}/lent/value {work_dir}/ca.key", mounts=mounts, hidden=[str(work_dir)])
    assert "shared" in result.output
    assert "secret" not in result.output


async def test_a_socket_in_a_private_directory_is_reached_through_its_mount(work_dir: Path) -> None:
    """Its directory is mounted: only the permissions of the directory and of the socket count."""
    (work_dir / "api").mkdir()
    (work_dir / "api").chmod(0o755)
    asked = asyncio.Event()

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        writer.write(b"hello\n")
        writer.close()

    server = await asyncio.start_unix_server(answer, work_dir / "api" / "socket")
    (work_dir / "api" / "socket").chmod(0o666)
    code = "import socket as s; c = s.socket(s.AF_UNIX); c.connect('/run/herder/host/socket'); print(c.recv(9))"
    if not shutil.which("python3", path="/usr/bin"):
        pytest.skip("needs /usr/bin/python3")
    async with server:
        mounts = [{"source": str(work_dir / "api"), "target": "/run/herder/host"}]
        result = await run(work_dir, f'/usr/bin/python3 -c "{code}"', mounts=mounts, hidden=[str(work_dir)])
    assert result.output == "b'hello\\n'\n"
    assert asked.is_set()


async def test_a_read_only_volume_cannot_be_written(work_dir: Path) -> None:
    source = volume(work_dir, "v", "x")
    os.chmod(source, 0o777)
    mounts = [{"source": source, "target": "/v", "read_only": True}]
    result = await run(work_dir, "touch /v/new", mounts=mounts)
    assert result.outcome.code != 0
    assert "Read-only file system" in result.output


async def test_memory_is_limited(work_dir: Path) -> None:
    script = f"{sys.executable} -c 'bytearray(400 << 20)' || /usr/bin/python3 -c 'bytearray(400 << 20)'"
    if not shutil.which("python3", path="/usr/bin"):
        pytest.skip("needs /usr/bin/python3")
    assert (await run(work_dir, script)).outcome.code == 0
    result = await run(work_dir, script, limits={"memory": 100 << 20})
    assert result.outcome.code == 1
    assert "MemoryError" in result.output or "Permission denied" in result.output


@pytest.mark.parametrize(
    ("script", "code", "number"),
    [("exit 0", 0, 0), ("exit 200", 200, 0), ("kill -9 $$", 137, 9), ("kill -15 $$", 143, 15)],
)
async def test_the_exit_code_and_signal_are_reported(work_dir: Path, script: str, code: int, number: int) -> None:
    outcome = (await run(work_dir, script)).outcome
    assert (outcome.code, outcome.signal, outcome.reason) == (code, number, "")
    assert outcome.started <= outcome.finished


async def test_leftover_processes_end_with_the_container(work_dir: Path) -> None:
    marker = f"{time.time_ns() % 10**8 + 1000}"
    result = await run(work_dir, f"setsid sleep {marker} & exit 3")
    assert result.outcome.code == 3
    assert subprocess.run(["pgrep", "-f", f"sleep {marker}"], stdout=subprocess.DEVNULL).returncode == 1


async def test_leftover_processes_end_without_a_pid_namespace(work_dir: Path) -> None:
    marker = f"{time.time_ns() % 10**8 + 1000}"
    result = await run(work_dir, f"setsid sleep {marker} & exit 3", isolation=Isolation(pid=False))
    assert result.outcome.code == 3
    assert subprocess.run(["pgrep", "-f", f"sleep {marker}"], stdout=subprocess.DEVNULL).returncode == 1


async def test_a_container_that_ignores_sigterm_is_killed(work_dir: Path) -> None:
    isolation = await detect_isolation(work_dir)
    config_of_container = container_config(
        ["sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.05; done"],
        ENVIRONMENT,
        isolation=isolation,
        user=HostUser.named(),
    )
    attempt = await Attempt.start(work_dir / "c", config_of_container)
    assert await attempt.started()
    async with asyncio.timeout(20):
        while "deaf" not in attempt.log.read_text():
            await asyncio.sleep(0.02)
    attempt.terminate()
    await asyncio.sleep(0.2)
    assert attempt.is_alive()
    attempt.kill()
    outcome = await attempt.ended()
    assert outcome is not None
    assert (outcome.code, outcome.signal) == (137, 9)
    assert not attempt.is_alive()


async def test_the_environment_is_in_no_argument_and_in_no_file(work_dir: Path) -> None:
    isolation = await detect_isolation(work_dir)
    config_of_container = container_config(
        ["sleep", "5"], {**ENVIRONMENT, "PASSWORD": "very-secret"}, isolation=isolation, user=HostUser.named()
    )
    attempt = await Attempt.start(work_dir / "c", config_of_container)
    assert await attempt.started()
    try:
        arguments = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, check=True).stdout
        assert b"very-secret" not in arguments
        for file in work_dir.rglob("*"):
            if file.is_file():
                assert b"very-secret" not in file.read_bytes()
    finally:
        attempt.kill()
        await attempt.ended()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root to become somebody else")
async def test_an_ordinary_user_gets_the_same_isolation() -> None:
    code = (
        "import asyncio, tempfile\n"
        "from pathlib import Path\n"
        "from herder.engine.runner.isolation import *\n"
        "async def main():\n"
        "    with tempfile.TemporaryDirectory(dir='/var/tmp') as name:\n"
        "        print(await detect(Path(name), HostUser.named()))\n"
        "asyncio.run(main())\n"
    )
    with tempfile.TemporaryDirectory(
        dir="/var/tmp"
    ) as copy:  # other users may not read the home that contains the sources
        shutil.copytree(Path(herder.__file__).parent, f"{copy}/herder", ignore=shutil.ignore_patterns("__pycache__"))
        os.chmod(copy, 0o755)
        for python in (sys.executable, "/usr/bin/python3"):
            command = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", python, "-c", code]
            done = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, cwd="/", timeout=60, env={"PYTHONPATH": copy}
            )
            if "Permission denied" not in done.stderr:
                break
        else:
            pytest.skip("needs a Python that others than root can run")
    assert done.stdout == f"{Isolation()}\n", done.stderr
