"""The entry point of a machine's Job, as a separate process with a termination log."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from herder.machine.entrypoint import _own_flags
from tests.support.peers import peer
from tests.unit.machine.test_plugins import NAME, PROGRAM, site

__all__ = ["site"]

CREATE = ("create", "--driver=generic", "--generic-ip-address=127.0.0.1")


class Job:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "termination-log"
        self.log.touch()
        self.environment = {
            "PATH": f"{directory / 'bin'}:{os.environ['PATH']}",
            "HOME": str(directory),
            "MACHINE_STORAGE_PATH": str(directory / "store"),
        }

    def command(self, *arguments: str) -> list[str]:
        code = "import sys; from pathlib import Path; from herder.machine import entrypoint as e;"
        code += "e.TERMINATION_LOG = Path(sys.argv.pop(1)); sys.exit(e.main())"
        return [sys.executable, "-c", code, str(self.log), *arguments]

    def run(self, *arguments: str, status: int = 0) -> str:
        finished = subprocess.run(
            self.command(*arguments), capture_output=True, text=True, env=self.environment, timeout=60, check=False
        )
        assert finished.returncode == status, finished.stdout + finished.stderr
        return finished.stdout + finished.stderr

    def install_rancher_machine(self, script: str) -> None:
        path = self.directory / "bin/rancher-machine"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}")
        path.chmod(0o755)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_progress_and_errors_are_written_to_the_termination_log(job: Job) -> None:
    output = job.run(
        "create", "--driver=generic", "--generic-ip-address=127.0.0.1", "--generic-ssh-key=/none", "m1", status=3
    )
    assert "Running pre-create checks..." in output
    assert "SSH key does not exist" in output
    assert sorted(job.log.read_text().splitlines()) == sorted(output.splitlines())


def test_a_missing_termination_log_is_ignored(job: Job) -> None:
    job.log.unlink()
    assert "nothing to do" in job.run("rm", "-y", "m1")


@pytest.mark.parametrize(
    ("line", "own", "rest"),
    [
        ("rm -y m", {}, "rm -y m"),
        ("--driver-download-url= --driver-hash= rm", {}, "rm"),
        ("--driver-download-url=http://x?a=b rm", {"driver-download-url": "http://x?a=b"}, "rm"),
        ("--secret-name=s --driver-hash=ab rm", {"driver-hash": "ab"}, "--secret-name=s rm"),
        ("--program rancher-machine --secret-name=s rm", {"program": "rancher-machine"}, "--secret-name=s rm"),
        ("create --x-program=p", {}, "create --x-program=p"),
    ],
)
def test_entrypoint_flags_are_removed_from_the_command_line(line: str, own: dict[str, str], rest: str) -> None:
    none = {"program": "", "driver-download-url": "", "driver-hash": ""}
    assert _own_flags(line.split()) == (none | own, rest.split())


class TestRancherMachine:
    """rancher-machine runs if a NodeDriver requests it or the driver is not native."""

    def test_arguments_are_split_as_in_its_own_image(self, job: Job) -> None:
        job.install_rancher_machine('printf "[%s]" "$@"; exit 7')
        output = job.run(
            "--program", "rancher-machine", "create", "--driver=x", "--x-text=a b=c", "--x-on", "m1", status=7
        )
        assert output == "[create][--driver][x][--x-text][a b=c][--x-on][m1]"
        assert job.log.read_text() == output

    def test_it_runs_for_drivers_that_are_not_native(self, job: Job) -> None:
        job.install_rancher_machine('echo "$@" in $MACHINE_STORAGE_PATH; echo wrong >&2; exit 3')
        output = job.run("create", "--driver=digitalocean", "m1", status=3)
        assert output == f"create --driver digitalocean m1 in {job.directory / 'store'}\nwrong\n"
        assert job.log.read_text() == output

    def test_it_ends_on_sigterm(self, job: Job) -> None:
        job.install_rancher_machine("echo ready; exec sleep 1000")
        process = subprocess.Popen(
            job.command("--program", "rancher-machine", "rm"), stdout=subprocess.PIPE, text=True, env=job.environment
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        process.communicate(timeout=30)
        assert process.returncode == 128 + signal.SIGTERM

    def test_a_missing_program_is_reported(self, job: Job) -> None:
        job.environment["HERDER_RANCHER_MACHINE"] = "/none/rancher-machine"
        assert "not found, but this driver requires it; install it" in job.run(
            "create", "--driver=digitalocean", "m1", status=1
        )

    def test_it_finds_a_downloaded_driver(self, job: Job, site: str) -> None:
        job.install_rancher_machine(f"cat $(command -v {NAME})")
        checksum = hashlib.sha256(PROGRAM).hexdigest()
        flags = (f"--driver-download-url={site}/{NAME}-v0.1.16", f"--driver-hash={checksum}")
        output = job.run("--program", "rancher-machine", *flags, "rm")
        assert PROGRAM.decode() in output
        assert f"Downloading driver from {site}" in job.log.read_text()

    def test_it_does_not_run_with_a_driver_of_another_checksum(self, job: Job, site: str) -> None:
        job.install_rancher_machine("echo ran")
        flags = (f"--driver-download-url={site}/{NAME}-v0.1.16", f"--driver-hash={'0' * 64}")
        output = job.run("--program", "rancher-machine", *flags, "rm", status=1)
        assert "failed sha256 checksum" in output
        assert "ran" not in output.split()

    def test_the_real_program_runs(self, job: Job) -> None:
        job.environment["HERDER_RANCHER_MACHINE"] = str(peer("rancher-machine"))
        assert "nothing to do" in job.run("--program", "rancher-machine", "rm", "-y", "m1")
