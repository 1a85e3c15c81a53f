"""Scripts that save snapshots, and that check one before servers stop."""

from __future__ import annotations

import hashlib
import json

import pytest

from herder.controllers.planner.distributions.rancher import authorities, tasks
from tests.unit.controllers.planner.operations.rancher_scripts.machine import PROGRAMS, Machine, expect

SAVED = "echo 'level=info msg=\"Snapshot on-demand-s1-1 saved.\"' >&2"
LISTED = '{"kind":"List","items":[]}'


def snapshot(content: bytes = b"e" * 1024) -> bytes:
    """A snapshot of etcd: whole pages, and the hash of them."""
    return content + hashlib.sha256(content).digest()


CORRUPT = b"x" + snapshot()[1:]


def hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("save", "content", "code", "error"),
    [
        (SAVED, snapshot(), 0, ""),
        (f"{SAVED}; {SAVED}", snapshot(), 0, ""),  # K3s prints the line twice if it also uploads the file
        (SAVED, CORRUPT, 1, "on-demand-s1-1 is corrupt: its hash is wrong"),
        (SAVED, snapshot()[:-512], 1, "its hash is wrong"),
        (SAVED, snapshot()[:-1], 1, "is not an etcd snapshot, or is truncated"),
        ("exit 0", snapshot(), 1, "no snapshot was saved"),  # the disk is full: k3s prints nothing
        ('echo "Error: bucket snaps does not exist" >&2; exit 1', b"", 1, "bucket snaps does not exist"),
    ],
)
def test_a_snapshot_is_saved_if_k3s_says_so_and_its_hash_is_right(
    machine: Machine, save: str, content: bytes, code: int, error: str
) -> None:
    machine.program("k3s", f"case $2 in save) {save} ;; ls) echo '{LISTED}' ;; esac")
    (machine.db / "on-demand-s1-1").write_bytes(content)
    done = machine.run(tasks.SAVE_SCRIPT, "k3s", str(machine.db))
    assert (done.returncode, error in done.stderr) == (code, True)
    if code == 0:
        expected = {"hashes": {"on-demand-s1-1": hash_of(content)}, "authorities": "", "list": json.loads(LISTED)}
        assert json.loads(done.stdout) == expected
    else:
        assert done.stdout == ""


def test_a_snapshot_names_its_certificate_authorities(machine: Machine) -> None:
    machine.program("k3s", f"case $2 in save) {SAVED} ;; ls) echo '{LISTED}' ;; esac")
    directory, tls = machine.db / "snapshots", machine.data / "server" / "tls"
    for each in (directory, tls / "etcd"):
        each.mkdir(parents=True)
    (directory / "on-demand-s1-1").write_bytes(snapshot())
    files = ("client-ca", "server-ca", "request-header-ca", "etcd/peer-ca", "etcd/server-ca")
    for number, name in enumerate(files):
        (tls / f"{name}.crt").write_text(f"{number}\n")
    done = machine.run(tasks.SAVE_SCRIPT, "k3s", str(directory))
    reported = machine.run(authorities.REPORT_SCRIPT, str(machine.data)).stdout.split()[-1]
    assert json.loads(done.stdout)["authorities"] == reported == hash_of(b"0\n1\n2\n3\n4\n")


def test_the_hash_of_a_compressed_or_remote_snapshot(machine: Machine) -> None:
    """A compressed file has no hash of its own, and the directory may be another one."""
    saved = SAVED.replace("on-demand-s1-1", "on-demand-s1-1.zip")
    machine.program("k3s", f"case $2 in save) {saved} ;; ls) echo '{LISTED}' ;; esac")
    done = machine.run(tasks.SAVE_SCRIPT, "k3s", str(machine.db))
    assert json.loads(done.stdout)["hashes"] == {}
    (machine.db / "on-demand-s1-1.zip").write_bytes(b"packed")
    done = machine.run(tasks.SAVE_SCRIPT, "k3s", str(machine.db))
    assert json.loads(done.stdout)["hashes"] == {"on-demand-s1-1.zip": hash_of(b"packed")}


@pytest.mark.parametrize(
    ("content", "recorded", "error"),
    [
        (snapshot(), "", ""),
        (snapshot(), hash_of(snapshot()), ""),
        (snapshot(b"o" * 512), hash_of(snapshot()), "is another file than the one that was saved"),
        (CORRUPT, "", "is corrupt: its hash is wrong"),
        (b"text\n", "", "is not an etcd snapshot, or is truncated"),
        (b"", "", "is empty or cannot be read"),
        (None, "", "does not exist"),
    ],
)
def test_a_snapshot_is_checked_before_servers_stop(
    machine: Machine, content: bytes | None, recorded: str, error: str
) -> None:
    """K3s moves the old data away before it finds that the hash of a file is wrong."""
    file = machine.db / "snapshot with spaces"
    if content is not None:
        file.write_bytes(content)
    done = machine.run(tasks.CHECK_SCRIPT, str(file), recorded)
    assert (done.returncode, error in done.stderr) == (1 if error else 0, True)


WARNING = 'level=warning msg="Unknown flag --token found in config.yaml, skipping\\\\n"'
ROWS = """Name                    Location                                     Size Created
on-demand-s1-1          file:///data/server/db/snapshots/on-demand-s1-1 10 2026-11-16T07:25:41Z
on-demand-s1-10         s3://snaps/farm/on-demand-s1-10                 10 2026-11-16T07:25:41Z
old-on-demand-s1-2      s3://snaps/farm/old-on-demand-s1-2              10 2026-11-16T07:25:41Z
on-demand-s1-2          s3://snaps/farm/on-demand-s1-2                  10 2026-11-16T07:25:41Z
"""


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("on-demand-s1-2", 0),
        ("on-demand-s1-10", 0),
        ("on-demand-s1-1", 1),  # is only on the machine, and part of another name
        ("demand-s1-2", 1),
        ("on-demand-s1-*", 1),
        ("Name", 1),
    ],
)
def test_a_snapshot_in_s3_is_found_by_its_whole_name(machine: Machine, program: str, name: str, code: int) -> None:
    rows = f"cat << 'END'\n{ROWS}END\necho '{WARNING}' >&2"
    expect(machine, program, "etcd-snapshot", "ls", then=rows)
    done = machine.run(tasks.CHECK_S3_SCRIPT, name, program, "etcd-snapshot", "ls")
    assert done.returncode == code, done.stderr
    assert (f"the bucket has no snapshot {name}" in done.stderr) is (code == 1)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_bucket_that_cannot_be_listed_is_reported(machine: Machine, program: str) -> None:
    expect(machine, program, "etcd-snapshot", "ls", then="echo 'Error: Access Denied.' >&2; exit 1")
    done = machine.run(tasks.CHECK_S3_SCRIPT, "on-demand-s1-1", program, "etcd-snapshot", "ls")
    assert (done.returncode, done.stderr) == (1, "Error: Access Denied.\n")


def test_a_directory_is_no_snapshot(machine: Machine) -> None:
    assert machine.run(tasks.CHECK_SCRIPT, str(machine.db), "").returncode == 1
