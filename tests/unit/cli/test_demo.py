"""`herder demo`, as whoever has just cloned this sees it: without a terminal it cleans up after itself and ends."""

from __future__ import annotations

import faulthandler
import io
import os
import pty
import re
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.embedded import HERDER
from tests.support.kubeadm_clusters import VERSION, kubernetes
from tests.support.machines import host_ended
from tests.support.peers import peer
from tests.support.site import network, ready_for_debians

BY_KUBEADM = ("--driver", "local", "--kubernetes", "kubeadm")
PATIENCE = 400  # on a host that has much else to do; these tests have an end of their own


def demo(
    *words: str | Path, around: tuple[str, ...] = (), seconds: int = 30, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*around, HERDER, "demo", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
        env=os.environ | environment,
    )


def assert_all_was_shown(done: subprocess.CompletedProcess[str], version: str, machines: int) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    nodes = [line.split() for line in done.stdout.splitlines() if re.search(r" (Not)?Ready +\S", line)]
    assert [(node[1], node[3]) for node in nodes] == [("Ready", version)] * machines, done.stdout
    assert f"All {machines} nodes have the label; no machine was replaced" in done.stdout
    assert "The demo is done and cleaned up" in done.stdout.splitlines()[-1]


def assert_nothing_is_left(directory: Path) -> None:
    """Of what it had there: files, mounts, and processes that know of it."""
    assert not list(directory.iterdir())
    assert str(directory) not in Path("/proc/self/mounts").read_text()
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(directory) in _read(path)]


@contextmanager
def machines_ended(directory: Path) -> Iterator[None]:
    """Where the demo could not do it itself."""
    try:
        yield
    finally:
        for data in directory.glob("herder-demo-*/data"):
            with host_ended(data):
                pass


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # it has ended meanwhile
        return ""


def test_machines_that_are_processes_need_nothing_but_python(tmp_path: Path) -> None:
    """Go and whatever else is in PATH are out of reach."""
    faulthandler.cancel_dump_traceback_later()
    done = demo(seconds=PATIENCE, TMPDIR=str(tmp_path), PATH="/usr/bin:/bin")
    assert_all_was_shown(done, "v1.36.3+herder1", 3)
    assert_nothing_is_left(tmp_path)


def test_with_a_terminal_it_stays_and_takes_along_what_was_made_meanwhile(tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()
    environment = os.environ | {"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    ours, its = pty.openpty()
    with machines_ended(tmp_path), os.fdopen(ours, "rb", buffering=0) as screen:
        command = [HERDER, "demo", "--workers", "0"]
        with ended(subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment)) as running:
            os.close(its)
            shown = _shown(screen, until="Press Ctrl-C")
            assert f"export PATH={Path(HERDER).parent}:$PATH" in shown
            (kubeconfig,) = re.findall(r"export KUBECONFIG=(\S+)", shown)
            assert Path(kubeconfig).is_file(), "what is to be typed is shown as a whole"
            make = [HERDER, "create", "cluster", "heath", "--workers", "0", "--no-wait", "--kubeconfig", kubeconfig]
            subprocess.run(make, check=True, capture_output=True, timeout=PATIENCE)
            running.send_signal(signal.SIGINT)
            shown = _shown(screen, until="The demo is done")
            assert running.wait(PATIENCE) == 0
    assert "cluster meadow is deleted" in shown
    assert "cluster heath is deleted" in shown
    assert_nothing_is_left(tmp_path)


def _shown(screen: io.FileIO, until: str) -> str:
    text = ""
    while until not in text:
        text += screen.read(4096).decode(errors="replace")
    return text


def test_debians_run_kubernetes_from_the_programs_of_this_checkout(tmp_path: Path) -> None:
    peer("kubeadm")
    ready_for_debians()
    faulthandler.cancel_dump_traceback_later()
    name = f"herder-{uuid.uuid4().hex[:8]}"
    with network(name), machines_ended(tmp_path):
        around = ("nsenter", f"--net=/run/netns/{name}")
        done = demo(*BY_KUBEADM, "--workers", "1", around=around, seconds=PATIENCE, TMPDIR=str(tmp_path))
        links = subprocess.run(["ip", "-n", name, "-o", "link"], capture_output=True, text=True, check=True).stdout
    assert f"Build an installer image of {VERSION} from the binaries built in this checkout" in done.stdout
    assert_all_was_shown(done, kubernetes(VERSION), 2)
    assert [line.split()[1] for line in links.splitlines()] == ["lo:"]
    assert_nothing_is_left(tmp_path)


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--driver", "local"), "--driver local and --kubernetes kubeadm must be used together"),
        (("--programs", "/"), "--installer and --programs require --kubernetes kubeadm"),
        (
            (*BY_KUBEADM, "--programs", "/", "--installer", __file__),
            "--installer and --programs are mutually exclusive",
        ),
    ],
)
def test_flags_that_do_not_go_together_are_told(words: tuple[str, ...], told: str) -> None:
    done = demo(*words)
    assert done.returncode == 2
    assert told in done.stderr


def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("what machines are made of is looked at once it is known that they can be made: needs root")


def test_what_is_no_installer_is_told() -> None:
    as_root()
    assert f"--installer: {__file__} is not an archive written by" in demo(*BY_KUBEADM, "--installer", __file__).stderr


def test_programs_that_a_directory_lacks_are_told(tmp_path: Path) -> None:
    as_root()
    (tmp_path / "kubelet").touch()
    told = demo(*BY_KUBEADM, "--programs", tmp_path).stderr
    assert f"--programs: {tmp_path} does not contain kubeadm, kubectl, kube-proxy, etcdctl," in told


def test_where_no_programs_are_it_is_told_what_to_do(tmp_path: Path) -> None:
    as_root()
    done = demo(*BY_KUBEADM, HERDER_PEERS_CACHE=str(tmp_path), PATH="/usr/bin:/bin")
    assert done.returncode == 1
    assert "--programs DIRECTORY" in done.stderr
    assert "built in this checkout: found none" in done.stderr
    assert "python3 peers/build.py kubeadm kubectl kubelet" in done.stderr
