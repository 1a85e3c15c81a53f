"""What a machine's Job runs: as a process of its own, with a file where a pod has its last words."""

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

    def command(self, *words: str) -> list[str]:
        code = "import sys; from pathlib import Path; from herder.machine import entrypoint as e;"
        code += "e.TERMINATION_LOG = Path(sys.argv.pop(1)); sys.exit(e.main())"
        return [sys.executable, "-c", code, str(self.log), *words]

    def run(self, *words: str, status: int = 0) -> str:
        done = subprocess.run(
            self.command(*words), capture_output=True, text=True, env=self.environment, timeout=60, check=False
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def other_program(self, script: str) -> None:
        path = self.directory / "bin/rancher-machine"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}")
        path.chmod(0o755)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_errors_and_news_are_the_last_words(job: Job) -> None:
    said = job.run(
        "create", "--driver=generic", "--generic-ip-address=127.0.0.1", "--generic-ssh-key=/none", "m1", status=3
    )
    assert "Running pre-create checks..." in said
    assert "SSH key does not exist" in said
    assert sorted(job.log.read_text().splitlines()) == sorted(said.splitlines())


def test_where_nobody_wants_last_words_it_works_as_well(job: Job) -> None:
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
def test_its_own_flags_are_taken_out(line: str, own: dict[str, str], rest: str) -> None:
    none = {"program": "", "driver-download-url": "", "driver-hash": ""}
    assert _own_flags(line.split()) == (none | own, rest.split())


class TestTheOtherProgram:
    """rancher-machine, where a NodeDriver says so or a driver is not ours."""

    def test_gets_the_words_split_as_its_image_does(self, job: Job) -> None:
        job.other_program('printf "[%s]" "$@"; exit 7')
        said = job.run(
            "--program", "rancher-machine", "create", "--driver=x", "--x-text=a b=c", "--x-on", "m1", status=7
        )
        assert said == "[create][--driver][x][--x-text][a b=c][--x-on][m1]"
        assert job.log.read_text() == said

    def test_is_asked_for_drivers_that_are_not_ours(self, job: Job) -> None:
        job.other_program('echo "$@" in $MACHINE_STORAGE_PATH; echo wrong >&2; exit 3')
        said = job.run("create", "--driver=digitalocean", "m1", status=3)
        assert said == f"create --driver digitalocean m1 in {job.directory / 'store'}\nwrong\n"
        assert job.log.read_text() == said

    def test_ends_when_we_are_asked_to(self, job: Job) -> None:
        job.other_program("echo ready; exec sleep 1000")
        process = subprocess.Popen(
            job.command("--program", "rancher-machine", "rm"), stdout=subprocess.PIPE, text=True, env=job.environment
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        process.communicate(timeout=30)
        assert process.returncode == 128 + signal.SIGTERM

    def test_that_is_not_there_is_told(self, job: Job) -> None:
        job.environment["HERDER_RANCHER_MACHINE"] = "/none/rancher-machine"
        assert "not found, but this driver requires it; install it" in job.run(
            "create", "--driver=digitalocean", "m1", status=1
        )

    def test_finds_a_driver_that_was_fetched(self, job: Job, site: str) -> None:
        job.other_program(f"cat $(command -v {NAME})")
        checksum = hashlib.sha256(PROGRAM).hexdigest()
        flags = (f"--driver-download-url={site}/{NAME}-v0.1.16", f"--driver-hash={checksum}")
        said = job.run("--program", "rancher-machine", *flags, "rm")
        assert PROGRAM.decode() in said
        assert f"Downloading driver from {site}" in job.log.read_text()

    def test_is_not_run_with_a_driver_that_is_not_what_it_should_be(self, job: Job, site: str) -> None:
        job.other_program("echo ran")
        flags = (f"--driver-download-url={site}/{NAME}-v0.1.16", f"--driver-hash={'0' * 64}")
        said = job.run("--program", "rancher-machine", *flags, "rm", status=1)
        assert "failed sha256 checksum" in said
        assert "ran" not in said.split()

    def test_the_real_one(self, job: Job) -> None:
        job.environment["HERDER_RANCHER_MACHINE"] = str(peer("rancher-machine"))
        assert "nothing to do" in job.run("--program", "rancher-machine", "rm", "-y", "m1")
