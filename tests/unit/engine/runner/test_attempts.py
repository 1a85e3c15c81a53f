"""Containers as processes: kept apart from the host and from each other, stopped, and remembered."""

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
from tests.unit.engine.runner.racing import swapping

if TYPE_CHECKING:
    from herder.engine.client.client import Client
    from herder.engine.runner.pod.sources import Sources

ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="attempts-") as name:
        yield Path(name)


async def detected(place: Path) -> Isolation:
    found = await detect(place, HostUser.named())
    assert found is not None
    return found


class Ran:
    def __init__(self, outcome: Outcome, said: str) -> None:
        self.outcome = outcome
        self.said = said


async def run(place: Path, script: str, *, isolation: Isolation | None = None, **config: Any) -> Ran:
    user = HostUser.named()
    chosen = isolation or await detected(place)
    name = str(len(list(place.iterdir())))
    told = container_config(["sh", "-c", script], ENVIRONMENT, isolation=chosen, user=user, **config)
    attempt = await Attempt.start(place / name, told)
    outcome = await attempt.ended()
    assert outcome is not None
    text = b"".join([chunk async for chunk in read(attempt.log, LogOptions(), ended=lambda: True)])
    return Ran(outcome, text.decode())


def volume(place: Path, name: str, content: str) -> str:
    path = place / name
    path.mkdir()
    (path / "value").write_text(content)
    return str(path)


async def test_volumes_appear_at_paths_that_the_host_does_not_have(place: Path) -> None:
    paths = ["/run/secrets/machine", "/var/run/secrets/kubernetes.io/serviceaccount", "/etc/rancher/ssl", "/new/place"]
    mounts = [
        {"source": volume(place, str(number), path), "target": path, "read_only": True}
        for number, path in enumerate(paths)
    ]
    before = {path: os.path.exists(path) for path in paths}
    ran = await run(place, "; ".join(f"cat {path}/value; echo" for path in paths), mounts=mounts)
    assert ran.said.split() == paths
    assert {path: os.path.exists(path) for path in paths} == before


async def test_a_file_may_be_mounted_over_a_file_of_the_host(place: Path) -> None:
    source = place / "hosts"
    source.write_text("mine\n")
    source.chmod(0o644)
    mounts = [{"source": str(source), "target": "/etc/hosts", "read_only": True}]
    ran = await run(place, "cat /etc/hosts; ls /etc/passwd", mounts=mounts)
    assert ran.said == "mine\n/etc/passwd\n"


async def test_a_container_is_nobody_in_particular(place: Path) -> None:
    ran = await run(place, "id -u; id -g; grep -E 'CapEff|NoNewPrivs' /proc/self/status", container_ids=(1000, 2000))
    assert ran.said.split() == ["1000", "2000", "CapEff:", "0000000000000000", "NoNewPrivs:", "1"]


async def test_root_of_a_container_has_no_capabilities(place: Path) -> None:
    ran = await run(place, "id -u; grep -E '^Cap|NoNewPrivs' /proc/self/status", container_ids=(0, 0))
    fields = ran.said.split()
    assert fields[0] == "0"
    assert dict(zip(fields[1::2], fields[2::2], strict=True)) == {
        "NoNewPrivs:": "1",
        **{f"Cap{name}:": "0" * 16 for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")},
    }


async def test_a_mount_point_is_not_created_through_a_symlink_in_a_volume(place: Path) -> None:
    outside = place / "outside"
    outside.mkdir(mode=0o700)
    volume(place, "planted", "x")
    (place / "planted" / "link").symlink_to(outside)
    mounts = [
        {"source": str(place / "planted"), "target": "/data"},
        {"source": volume(place, "inner", "y"), "target": "/data/link/created"},
    ]
    ran = await run(place, "true", mounts=mounts)
    assert os.listdir(outside) == []
    assert ran.outcome.reason == "ContainerCannotRun"


async def test_a_sub_path_that_becomes_a_symlink_after_the_check_is_not_mounted(place: Path) -> None:
    volume(place, "outside", "of the host")
    (place / "outside").chmod(0o755)
    pod = {"metadata": {}, "spec": {"volumes": [{"name": "v", "emptyDir": {}}]}, "status": {}}
    volumes = Volumes(cast("Client", None), pod, place / "volumes", user=HostUser.named(), node="", address="")
    await volumes.prepare(cast("Sources", None), datetime.now(UTC))
    mounts = volumes.mounts({"volumeMounts": [{"name": "v", "subPath": "a/b", "mountPath": "/data"}]})
    shutil.rmtree(place / "volumes" / "v" / "a")
    (place / "volumes" / "v" / "a").mkdir()
    (place / "volumes" / "v" / "a" / "b").symlink_to(place / "outside")
    ran = await run(place, "cat /data/value", mounts=mounts)
    assert ran.outcome.reason == "ContainerCannotRun"
    assert "of the host" not in ran.said


async def test_no_race_mounts_what_is_outside_of_a_volume(place: Path) -> None:
    for path in ("outside", "outside/b", "planted", "planted/a", "planted/a/b"):
        (place / path).mkdir(mode=0o755)
    (place / "outside" / "b" / "value").write_text("of the host")
    mounts = [
        {"source": str(place / "planted"), "sub_path": "a/b", "target": "/data"},
        {"source": str(place / "planted"), "target": "/planted"},
        {"source": volume(place, "inner", "y"), "target": "/planted/a/created"},
    ]
    with swapping(place / "planted" / "a", place / "outside"):
        for _ in range(10):
            assert "of the host" not in (await run(place, "cat /data/value", mounts=mounts)).said
    assert os.listdir(place / "outside") == ["b"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only then the first process may read more than the program")
async def test_the_first_process_opens_nothing_of_a_volume(place: Path) -> None:
    """It is root when it opens /dev/null for the program; a volume may be mounted there."""
    (place / "shadow").write_text("of the host")
    (place / "shadow").chmod(0o600)
    (place / "dev").mkdir()
    (place / "dev" / "null").symlink_to(place / "shadow")
    ran = await run(place, "cat", mounts=[{"source": str(place / "dev"), "target": "/dev"}])
    assert (ran.outcome.code, ran.said) == (0, "")


@pytest.mark.parametrize("target", ["/proc", "/proc/self/task", "/"])
async def test_volumes_do_not_take_the_place_of_proc_or_the_root(place: Path, target: str) -> None:
    """The first process reads there which processes it kills, and writes the ids of the program's user namespace."""
    ran = await run(place, "true", mounts=[{"source": volume(place, "v", "x"), "target": target}])
    assert ran.outcome.reason == "ContainerCannotRun"
    assert "a volume cannot be mounted there" in ran.outcome.message


async def test_the_first_process_imports_nothing_of_a_volume(place: Path) -> None:
    planted = place / "planted"
    planted.mkdir()
    for name in ("warnings", "linecache", "traceback", "tokenize", "encodings"):
        (planted / f"{name}.py").write_text("raise SystemExit(77)")
    mounts = [{"source": str(planted), "target": path} for path in (os.path.dirname(os.__file__), *sys.path[-1:])]
    ran = await run(place, "exit 5", mounts=mounts)
    assert ran.outcome.code == 5


async def test_a_container_holds_no_file_of_the_runner(place: Path) -> None:
    """Nor the lock of its shim: a program that freed it would be taken for dead, and started again."""
    with (place / "ca.key").open("w") as inherited:
        os.set_inheritable(inherited.fileno(), True)
        ran = await run(place, "exec ls /proc/self/fd")
    assert ran.said.split() == ["0", "1", "2", "3"]  # the last is the directory that ls reads


async def test_a_container_sees_its_own_processes_and_tmp_only(place: Path) -> None:
    with tempfile.NamedTemporaryFile(dir="/tmp") as of_the_host:
        # HOME may be /tmp, and home directories are hidden.
        ran = await run(place, "touch /tmp/.own; ls /tmp | wc -l; ls -d /proc/[0-9]* | wc -l", hidden=["/tmp"])
        assert os.path.exists(of_the_host.name)
    files, processes = map(int, ran.said.split())
    assert files == 0
    assert processes < 8


async def test_hidden_directories_are_empty_to_it(place: Path) -> None:
    (place / "ca.key").write_text("secret")
    place.chmod(0o755)
    ran = await run(place, f"cat {place}/ca.key; ls {place}", hidden=[str(place)])
    assert ran.outcome.code != 0
    assert "secret" not in ran.said


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only then containers are somebody else")
async def test_what_a_program_needs_is_seen_where_only_others_may_go(place: Path) -> None:
    tool = place / "private" / "tools" / "1.2"
    tool.mkdir(parents=True)
    (tool / "value").write_text("needed\n")
    (tool / "value").chmod(0o644)
    (place / "private" / "tools" / "1").symlink_to("1.2")
    (place / "private" / "tools" / "2").symlink_to("/etc")
    (place / "private" / "letter").write_text("secret")
    script = f"cd {place} && cat private/tools/1.2/value private/tools/1/value && ls -x . private private/tools"
    assert "Permission denied" in (await run(place, f"cat {tool}/value")).said
    ran = await run(place, script, needs=[str(tool)])
    assert " ".join(ran.said.split()) == "needed needed .: private private: tools private/tools: 1 1.2"
    assert "Read-only file system" in (await run(place, f"touch {tool}/new", needs=[str(tool)])).said


async def test_what_a_program_needs_may_lie_in_the_hosts_tmp(place: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        ran = await run(place, "ls /tmp", needs=[volume(Path(name), "v", "x"), f"{name}/v/value"])
    assert ran.said == f"{Path(name).name}\n"


async def test_what_everybody_sees_is_not_mounted_again(place: Path) -> None:
    ran = await run(place, "grep -c ' /usr/lib ' /proc/self/mountinfo", needs=["/usr/lib"])
    assert ran.said == "0\n"


async def test_a_volume_may_be_mounted_within_a_hidden_directory(place: Path) -> None:
    place.chmod(0o755)
    (place / "ca.key").write_text("secret")
    mounts = [{"source": volume(place, "lent", "shared"), "target": f"{place}/lent"}]
    ran = await run(place, f"cat {place}/lent/value {place}/ca.key", mounts=mounts, hidden=[str(place)])
    assert "shared" in ran.said
    assert "secret" not in ran.said


async def test_a_socket_in_a_private_directory_is_reached_through_its_mount(place: Path) -> None:
    """Its directory is mounted: only the permissions of the directory and of the socket count."""
    (place / "api").mkdir()
    (place / "api").chmod(0o755)
    asked = asyncio.Event()

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        writer.write(b"hello\n")
        writer.close()

    server = await asyncio.start_unix_server(answer, place / "api" / "socket")
    (place / "api" / "socket").chmod(0o666)
    code = "import socket as s; c = s.socket(s.AF_UNIX); c.connect('/run/herder/host/socket'); print(c.recv(9))"
    if not shutil.which("python3", path="/usr/bin"):
        pytest.skip("needs /usr/bin/python3")
    async with server:
        mounts = [{"source": str(place / "api"), "target": "/run/herder/host"}]
        ran = await run(place, f'/usr/bin/python3 -c "{code}"', mounts=mounts, hidden=[str(place)])
    assert ran.said == "b'hello\\n'\n"
    assert asked.is_set()


async def test_a_read_only_volume_cannot_be_written(place: Path) -> None:
    source = volume(place, "v", "x")
    os.chmod(source, 0o777)
    mounts = [{"source": source, "target": "/v", "read_only": True}]
    ran = await run(place, "touch /v/new", mounts=mounts)
    assert ran.outcome.code != 0
    assert "Read-only file system" in ran.said


async def test_memory_is_limited(place: Path) -> None:
    script = f"{sys.executable} -c 'bytearray(400 << 20)' || /usr/bin/python3 -c 'bytearray(400 << 20)'"
    if not shutil.which("python3", path="/usr/bin"):
        pytest.skip("needs /usr/bin/python3")
    assert (await run(place, script)).outcome.code == 0
    ran = await run(place, script, limits={"memory": 100 << 20})
    assert ran.outcome.code == 1
    assert "MemoryError" in ran.said or "Permission denied" in ran.said


@pytest.mark.parametrize(
    ("script", "code", "number"),
    [("exit 0", 0, 0), ("exit 200", 200, 0), ("kill -9 $$", 137, 9), ("kill -15 $$", 143, 15)],
)
async def test_how_it_ended_is_told(place: Path, script: str, code: int, number: int) -> None:
    outcome = (await run(place, script)).outcome
    assert (outcome.code, outcome.signal, outcome.reason) == (code, number, "")
    assert outcome.started <= outcome.finished


async def test_what_a_container_leaves_behind_ends_with_it(place: Path) -> None:
    marker = f"{time.time_ns() % 10**8 + 1000}"
    ran = await run(place, f"setsid sleep {marker} & exit 3")
    assert ran.outcome.code == 3
    assert subprocess.run(["pgrep", "-f", f"sleep {marker}"], stdout=subprocess.DEVNULL).returncode == 1


async def test_without_a_pid_namespace_leftovers_end_too(place: Path) -> None:
    marker = f"{time.time_ns() % 10**8 + 1000}"
    ran = await run(place, f"setsid sleep {marker} & exit 3", isolation=Isolation(pid=False))
    assert ran.outcome.code == 3
    assert subprocess.run(["pgrep", "-f", f"sleep {marker}"], stdout=subprocess.DEVNULL).returncode == 1


async def test_one_that_ignores_the_polite_signal_is_killed(place: Path) -> None:
    isolation = await detected(place)
    told = container_config(
        ["sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.05; done"],
        ENVIRONMENT,
        isolation=isolation,
        user=HostUser.named(),
    )
    attempt = await Attempt.start(place / "c", told)
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


async def test_environment_is_in_no_argument_and_in_no_file(place: Path) -> None:
    isolation = await detected(place)
    told = container_config(
        ["sleep", "5"], {**ENVIRONMENT, "PASSWORD": "very-secret"}, isolation=isolation, user=HostUser.named()
    )
    attempt = await Attempt.start(place / "c", told)
    assert await attempt.started()
    try:
        arguments = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, check=True).stdout
        assert b"very-secret" not in arguments
        for file in place.rglob("*"):
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
    with tempfile.TemporaryDirectory(dir="/var/tmp") as copy:  # whose home our sources are in, they may not look into
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
