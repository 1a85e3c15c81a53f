"""`herder demo` after a fresh clone. Without a terminal it cleans up after itself and exits."""

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

from tests.support.clusters.kubeadm_clusters import VERSION, kubernetes
from tests.support.clusters.site import network_namespace, require_local_machines
from tests.support.embedded import HERDER
from tests.support.manager.machines import host_shutdown
from tests.support.peers import peer

WITH_KUBEADM = ("--driver", "local", "--kubernetes", "kubeadm")
PATIENCE = 400  # for a busy host; these tests have their own timeouts


def demo(
    *arguments: str | Path, wrapper: tuple[str, ...] = (), seconds: int = 30, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*wrapper, HERDER, "demo", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
        env=os.environ | environment,
    )


def assert_demo_succeeded(result: subprocess.CompletedProcess[str], version: str, machines: int) -> None:
    assert result.returncode == 0, result.stdout + result.stderr
    nodes = [line.split() for line in result.stdout.splitlines() if re.search(r" (Not)?Ready +\S", line)]
    assert [(node[1], node[3]) for node in nodes] == [("Ready", version)] * machines, result.stdout
    assert f"All {machines} nodes have the label; no machine was replaced" in result.stdout
    assert "The demo is done and cleaned up" in result.stdout.splitlines()[-1]


def assert_cleaned_up(directory: Path) -> None:
    """There are no files, mounts or processes of the demo."""
    assert not list(directory.iterdir())
    assert str(directory) not in Path("/proc/self/mounts").read_text()
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(directory) in _read(path)]


@contextmanager
def cleaned_up_machines(directory: Path) -> Iterator[None]:
    """End the machines that the demo could not end itself."""
    try:
        yield
    finally:
        for data in directory.glob("herder-demo-*/data"):
            with host_shutdown(data):
                pass


@contextmanager
def killed_at_exit(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # the process has ended meanwhile
        return ""


def test_the_process_driver_needs_only_python(tmp_path: Path) -> None:
    """Go and other programs of this checkout are not in PATH."""
    faulthandler.cancel_dump_traceback_later()
    result = demo(seconds=PATIENCE, TMPDIR=str(tmp_path), PATH="/usr/bin:/bin")
    assert_demo_succeeded(result, "v1.36.3+herder1", 3)
    assert_cleaned_up(tmp_path)


def test_with_a_terminal_the_demo_waits_and_deletes_all_clusters_at_the_end(tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()
    environment = os.environ | {"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    controller, terminal = pty.openpty()
    with cleaned_up_machines(tmp_path), os.fdopen(controller, "rb", buffering=0) as screen:
        command = [HERDER, "demo", "--workers", "0"]
        with killed_at_exit(
            subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
        ) as running:
            os.close(terminal)
            output = _read_until(screen, marker="Press Ctrl-C")
            assert f"export PATH={Path(HERDER).parent}:$PATH" in output
            (kubeconfig,) = re.findall(r"export KUBECONFIG=(\S+)", output)
            assert Path(kubeconfig).is_file(), "commands to copy are not wrapped"
            command_create = [
                HERDER,
                "create",
                "cluster",
                "heath",
                "--workers",
                "0",
                "--no-wait",
                "--kubeconfig",
                kubeconfig,
            ]
            subprocess.run(command_create, check=True, capture_output=True, timeout=PATIENCE)
            running.send_signal(signal.SIGINT)
            output = _read_until(screen, marker="The demo is done")
            assert running.wait(PATIENCE) == 0
    assert "cluster meadow is deleted" in output
    assert "cluster heath is deleted" in output
    assert_cleaned_up(tmp_path)


def _read_until(screen: io.FileIO, marker: str) -> str:
    text = ""
    while marker not in text:
        text += screen.read(4096).decode(errors="replace")
    return text


def test_debian_machines_run_kubeadm_from_the_binaries_of_this_checkout(tmp_path: Path) -> None:
    peer("kubeadm")
    require_local_machines()
    faulthandler.cancel_dump_traceback_later()
    name = f"herder-{uuid.uuid4().hex[:8]}"
    with network_namespace(name), cleaned_up_machines(tmp_path):
        wrapper = ("nsenter", f"--net=/run/netns/{name}")
        result = demo(*WITH_KUBEADM, "--workers", "1", wrapper=wrapper, seconds=PATIENCE, TMPDIR=str(tmp_path))
        links = subprocess.run(["ip", "-n", name, "-o", "link"], capture_output=True, text=True, check=True).stdout
    assert f"Build an installer image of {VERSION} from the binaries built in this checkout" in result.stdout
    assert_demo_succeeded(result, kubernetes(VERSION), 2)
    assert [line.split()[1] for line in links.splitlines()] == ["lo:"]
    assert_cleaned_up(tmp_path)


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--driver", "local"), "--driver local and --kubernetes kubeadm must be used together"),
        (("--programs", "/"), "--installer and --programs require --kubernetes kubeadm"),
        (
            (*WITH_KUBEADM, "--programs", "/", "--installer", __file__),
            "--installer and --programs are mutually exclusive",
        ),
    ],
)
def test_conflicting_flags_are_reported(arguments: tuple[str, ...], message: str) -> None:
    result = demo(*arguments)
    assert result.returncode == 2
    assert message in result.stderr


def require_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: installers are checked only where machines can be created")


def test_an_invalid_installer_is_reported() -> None:
    require_root()
    assert (
        f"--installer: {__file__} is not an archive written by" in demo(*WITH_KUBEADM, "--installer", __file__).stderr
    )


def test_missing_programs_are_reported(tmp_path: Path) -> None:
    require_root()
    (tmp_path / "kubelet").touch()
    message = demo(*WITH_KUBEADM, "--programs", tmp_path).stderr
    assert f"--programs: {tmp_path} does not contain kubeadm, kubectl, kube-proxy, etcdctl," in message


def test_without_programs_the_error_explains_how_to_build_them(tmp_path: Path) -> None:
    require_root()
    result = demo(*WITH_KUBEADM, HERDER_PEERS_CACHE=str(tmp_path), PATH="/usr/bin:/bin")
    assert result.returncode == 1
    assert "--programs DIRECTORY" in result.stderr
    assert "built in this checkout: found none" in result.stderr
    assert "python3 peers/build.py kubeadm kubectl kubelet" in result.stderr
