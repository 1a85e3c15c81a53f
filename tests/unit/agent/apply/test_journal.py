"""The journal: results are on disk before they are reported, and survive power failures and truncated writes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from herder.agent.apply import atomic_file, files, journal
from herder.agent.apply.journal import Journal
from herder.agent.core.events import Evidence, Record, Result
from herder.agent.core.outputs import PeriodicOutput
from herder.agent.core.plan import File

PERIODIC = PeriodicOutput("watch", b"fine\n", None, 0, "Sun Nov 15 06:57:24 UTC 2026", 0, "")


def start_record(number: int) -> Record:
    return Record("uid", str(number), "checksum", 1, None)


def result_record(number: int, output: bytes = b"done\n", evidence: Evidence | None = None) -> Record:
    return start_record(number)._replace(
        result=Result(evidence is None, 12.5, {"it": output}, {"watch": PERIODIC}, evidence)
    )


def reread(directory: Path) -> Record | None:
    """Read the journal as the next process does."""
    return Journal(str(directory)).read()


@pytest.mark.parametrize(
    "record",
    [
        start_record(1),
        result_record(1),
        result_record(1, b"\x00\xff" * 5000),
        result_record(2, evidence=Evidence("it", 0, 3, "", "no \u2713")),
    ],
    ids=["begun", "succeeded", "longer than a block", "failed"],
)
def test_the_last_record_is_read_back(tmp_path: Path, record: Record) -> None:
    log = Journal(str(tmp_path))
    assert log.read() is None
    log.write(start_record(0))
    log.write(record)
    assert reread(tmp_path) == record


def test_a_full_journal_file_is_replaced(tmp_path: Path) -> None:
    log = Journal(str(tmp_path))
    for number in range(200):
        log.write(result_record(number, b"x" * 3000 * (number % 5)))
        assert reread(tmp_path) == result_record(number, b"x" * 3000 * (number % 5))
    assert os.path.getsize(tmp_path / journal.NAME) < 1 << 20
    assert os.listdir(tmp_path) == [journal.NAME]


@pytest.mark.parametrize("written_bytes", [0, 1, 16, 17, 100, 4096, 5000])
def test_a_truncated_record_leaves_the_previous_one(tmp_path: Path, written_bytes: int) -> None:
    log = Journal(str(tmp_path))
    log.write(result_record(1))
    before = (tmp_path / journal.NAME).read_bytes()
    log.write(result_record(2, b"x" * 9000))
    after = (tmp_path / journal.NAME).read_bytes()
    start = next(index for index in range(len(before)) if before[index] != after[index])
    (tmp_path / journal.NAME).write_bytes(after[: start + written_bytes] + before[start + written_bytes :])
    assert reread(tmp_path) == result_record(1)

    restarted = Journal(str(tmp_path))
    restarted.write(start_record(3))
    assert reread(tmp_path) == start_record(3), "the rest of the truncated record is not read later"


@pytest.mark.parametrize("content", [b"", b"{}", b"\0" * 9000, b"0000000200000000 {}", b"zzzz" * 9])
def test_an_invalid_journal_has_no_record(tmp_path: Path, content: bytes) -> None:
    (tmp_path / journal.NAME).write_bytes(content)
    assert reread(tmp_path) is None


class Disk:
    """Records the names of synced files, in order."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.synced: list[str] = []
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, self._recording(getattr(os, name)))
        patch.setattr(journal, "_sync", os.fdatasync)

    def _recording(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def recording(descriptor: int) -> None:
            sync(descriptor)
            self.synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))

        return recording


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_a_result_is_synced_once_and_a_start_is_not(tmp_path: Path, disk: Disk) -> None:
    log = Journal(str(tmp_path))
    log.write(start_record(1))
    assert disk.synced == [f"{journal.NAME}.{os.getpid()}.tmp", tmp_path.name], "a new file, then its name"
    disk.synced.clear()
    log.write(result_record(1))
    assert disk.synced == [journal.NAME]
    log.write(start_record(2))
    assert disk.synced == [journal.NAME]


def test_the_directory_of_a_new_file_is_synced(tmp_path: Path, disk: Disk) -> None:
    atomic_file.write(str(tmp_path / "position"), b"{}", durable=True)
    assert disk.synced == [f"position.{os.getpid()}.tmp", tmp_path.name]


def test_each_directory_of_a_plans_files_is_synced_once(tmp_path: Path, disk: Disk) -> None:
    paths = [tmp_path / "etc" / "a", tmp_path / "etc" / "b", tmp_path / "opt" / "c"]
    plan = [File(str(path), "aGk=", False, os.geteuid(), os.getegid(), "", False) for path in paths]
    files.apply(plan)
    assert [name for name in disk.synced if not name.endswith(".tmp")] == ["etc", "opt"]
    disk.synced.clear()
    files.apply(plan)
    assert disk.synced == [], "nothing changed"
