"""The script that hashes snapshots on the disk of a K3s or RKE2 server, run by shells."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from herder.api.rke.node.snapshot_hashes import MAX_HASHES, parse_hashes
from herder.controllers.planner.distributions.rancher import snapshots, tasks

SHELLS = {"sh": ("/bin/sh",), "bash": ("bash", "--posix")}  # Debian's sh is dash
BUDGET = 1 << 20


def snapshot(content: bytes = b"e" * 1024) -> bytes:
    """A snapshot of etcd: whole pages, and the hash of them."""
    return content + hashlib.sha256(content).digest()


def hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Server:
    """The directory of the data of a server, and programs that count what is read."""

    def __init__(self, directory: Path, shell: tuple[str, ...] = ("/bin/sh",)) -> None:
        self.shell, self.programs, self.db = shell, directory / "bin", directory / "data with spaces" / "db"
        self.snapshots, self.known = self.db / "snapshots", self.db / "snapshot-hashes"
        for each in (self.programs, self.snapshots):
            each.mkdir(parents=True)
        real = shutil.which("sha256sum")
        self.program("sha256sum", f'echo read >> "$0.log"; exec {real}')
        self.time = 1_000

    def program(self, name: str, script: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def save(self, name: str, content: bytes | None = None, *, time: int = 0) -> bytes:
        """Write a file; each is newer than the last."""
        self.time += 1
        content = snapshot(name.ljust(512).encode()[:512]) if content is None else content
        (self.snapshots / name).write_bytes(content)
        os.utime(self.snapshots / name, (self.time, time or self.time))
        return content

    def run(self, limit: int = MAX_HASHES, budget: int = BUDGET) -> subprocess.CompletedProcess[str]:
        arguments = (str(self.snapshots), str(self.known), str(limit), str(budget))
        command = [*self.shell, "-c", snapshots.HASH_SCRIPT, "sh", *arguments]
        environment = {"PATH": f"{self.programs}:{os.environ['PATH']}", "LC_ALL": "C"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)

    def report(self, limit: int = MAX_HASHES, budget: int = BUDGET) -> dict[str, str]:
        done = self.run(limit, budget)
        assert (done.returncode, done.stderr) == (0, "")
        found = parse_hashes(done.stdout.encode())
        assert len(found) == len(done.stdout.splitlines()), done.stdout
        return dict(found)

    @property
    def reads(self) -> int:
        """How often a file was read since the last call: twice for each valid one."""
        log = self.programs / "sha256sum.log"
        count = len(log.read_text().splitlines()) if log.exists() else 0
        log.unlink(missing_ok=True)
        return count


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


@pytest.mark.parametrize("shell", SHELLS.values(), ids=SHELLS)
def test_each_new_snapshot_is_hashed_once(tmp_path: Path, shell: tuple[str, ...]) -> None:
    server = Server(tmp_path, shell)
    assert server.report() == {}
    first = server.save("etcd-snapshot-s1-1")
    assert server.report() == {"etcd-snapshot-s1-1": hash_of(first)}
    assert server.reads == 2
    assert server.report() == {"etcd-snapshot-s1-1": hash_of(first)}
    assert server.reads == 0
    second = server.save("etcd-snapshot-s1-2")
    assert server.report() == {"etcd-snapshot-s1-1": hash_of(first), "etcd-snapshot-s1-2": hash_of(second)}
    assert server.reads == 2
    (server.snapshots / "etcd-snapshot-s1-1").unlink()
    assert server.report() == {"etcd-snapshot-s1-2": hash_of(second)}
    assert server.reads == 0
    assert [line.split()[0] for line in server.known.read_text().splitlines()] == ["etcd-snapshot-s1-2"]
    assert sorted(each.name for each in server.db.iterdir()) == ["snapshot-hashes", "snapshots"]
    assert server.known.stat().st_mode & 0o777 == 0o600


def test_the_hash_of_a_file_that_changes_behind_its_size_and_time_stays(server: Server) -> None:
    """The restore compares the content itself, and finds the change."""
    content = server.save("a-1")
    before = server.report()
    changed = b"x" + content[1:]
    server.save("a-1", changed, time=1_001)
    assert server.report() == before == {"a-1": hash_of(content)}
    check = [*server.shell, "-c", tasks.CHECK_SCRIPT, "sh", str(server.snapshots / "a-1"), before["a-1"]]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert (done.returncode, "its hash differs" in done.stderr) == (1, True)


def test_a_file_that_was_replaced_is_read_again(server: Server) -> None:
    """The manager keeps the hash that it has recorded first."""
    server.save("a-1")
    server.report()
    other = server.save("a-1", snapshot(b"o" * 2048))
    assert server.report() == {"a-1": hash_of(other)}


@pytest.mark.parametrize(
    "content", [b"", b"text\n", snapshot()[:-1], snapshot()[:-512], b"x" + snapshot()[1:]], ids=range(5)
)
def test_a_file_that_is_no_valid_snapshot_has_no_hash_until_it_changes(server: Server, content: bytes) -> None:
    """Such as one that is still being copied, or unpacked."""
    server.save("a-1", content)
    assert server.report() == {}
    assert server.reads <= 2
    assert server.report() == {}
    assert server.reads == 0, "it is known"
    complete = server.save("a-1")
    assert server.report() == {"a-1": hash_of(complete)}


def test_a_file_that_grows_while_it_is_read_has_no_hash(server: Server) -> None:
    path, real = server.snapshots / "a-1", shutil.which("sha256sum")
    content = server.save("a-1")
    server.program("sha256sum", f"{real}; printf more >> '{path}'")
    assert server.report() == {}
    assert server.known.read_text() == ""
    server.program("sha256sum", f"exec {real}")
    server.save("a-1", content)
    assert server.report() == {"a-1": hash_of(content)}


def test_only_snapshots_are_read(server: Server) -> None:
    valid = snapshot()
    (server.snapshots / "directory").mkdir()
    (server.snapshots / "link").symlink_to(server.db / "elsewhere")
    (server.db / "elsewhere").write_bytes(valid)
    for name in (".hidden", "-n", "a b", "a\nb", "a*", "a'; exit 1; '", "a-1.part", "a-1.zip", "größe", "a\\b"):
        server.save(name, valid)
    assert server.report() == {}
    assert server.reads == 0
    server.save("1e3", valid)
    other = server.save("1000", snapshot(b"o" * 1024), time=server.time)
    assert server.report() == server.report() == {"1e3": hash_of(valid), "1000": hash_of(other)}


def test_the_newest_files_are_reported(server: Server) -> None:
    contents = {f"a-{number}": server.save(f"a-{number}") for number in range(12)}
    newest = {f"a-{number}": hash_of(contents[f"a-{number}"]) for number in range(7, 12)}
    assert server.report(limit=5) == newest
    assert server.reads == 10
    assert len(server.known.read_text().splitlines()) == 5


def test_a_run_reads_a_limited_number_of_bytes(server: Server) -> None:
    """A server may have many files when it gets the instruction, and its agent waits for the end."""
    for number in range(6):
        server.save(f"a-{number}")
    counts = [len(server.report(budget=600)) for _ in range(4)]
    assert counts == [2, 4, 6, 6]
    assert server.reads == 12
    assert len(server.report(budget=1)) == 6, "known files cost nothing"


@pytest.mark.parametrize("lines", ["a-1 544 1001\n", "a-1 544 1001 zz\n", "a-1 544 1001", "\n", "a-1 544 1001 aa bb\n"])
def test_damaged_records_are_replaced(server: Server, lines: str) -> None:
    content = server.save("a-1")
    server.known.write_text(lines)
    assert server.report() == {"a-1": hash_of(content)}
    assert server.known.read_text() == f"a-1 544 1001 {hash_of(content)}\n"


def test_a_lost_record_is_computed_again(server: Server) -> None:
    server.save("a-1")
    before = server.report()
    server.known.unlink()
    assert server.report() == before


def test_a_server_without_snapshots_reports_nothing(server: Server) -> None:
    server.snapshots.rmdir()
    assert server.report() == {}
    assert not server.known.exists()


def test_a_record_that_cannot_be_written_fails_before_files_are_read(server: Server) -> None:
    """Agents repeat a failed instruction soon."""
    server.save("a-1")
    (server.db / "snapshot-hashes.new").symlink_to("/dev/full")
    done = server.run()
    assert (done.returncode, done.stdout, server.reads) == (1, "", 0)


def test_a_program_that_is_ended_leaves_no_wrong_hash(server: Server) -> None:
    content = server.save("a-1")
    server.program("sha256sum", "exit 137")
    assert server.report() == {}
    server.program("stat", "exit 127")
    assert server.report() == {}, "nodes without it report nothing"
    for name in ("sha256sum", "stat"):
        (server.programs / name).unlink()
    assert server.report() == {"a-1": hash_of(content)}


@pytest.mark.parametrize(
    "output", [b"\xff" * 4096, b"snapshot", b"snapshot " + b"a" * 64 + b" ../a", b"snapshot " + b"A" * 64 + b" a"]
)
def test_hostile_reports_are_empty(output: bytes) -> None:
    assert parse_hashes(output) == {}


def test_reports_are_limited() -> None:
    lines = b"".join(f"snapshot {number:064x} a-{number}\n".encode() for number in range(100_000))
    assert len(parse_hashes(lines)) == MAX_HASHES
