"""What a run has come to is on the disk before anybody is told: also after a power failure, also when it is cut off."""

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


def begun(number: int) -> Record:
    return Record("uid", str(number), "checksum", 1, None)


def ended(number: int, said: bytes = b"done\n", evidence: Evidence | None = None) -> Record:
    return begun(number)._replace(result=Result(evidence is None, 12.5, {"it": said}, {"watch": PERIODIC}, evidence))


def reread(directory: Path) -> Record | None:
    """By the next process."""
    return Journal(str(directory)).read()


@pytest.mark.parametrize(
    "record",
    [begun(1), ended(1), ended(1, b"\x00\xff" * 5000), ended(2, evidence=Evidence("it", 0, 3, "", "no \u2713"))],
    ids=["begun", "succeeded", "longer than a block", "failed"],
)
def test_the_last_record_is_what_was_written(tmp_path: Path, record: Record) -> None:
    kept = Journal(str(tmp_path))
    assert kept.read() is None
    kept.write(begun(0))
    kept.write(record)
    assert reread(tmp_path) == record


def test_a_file_that_is_full_is_replaced(tmp_path: Path) -> None:
    kept = Journal(str(tmp_path))
    for number in range(200):
        kept.write(ended(number, b"x" * 3000 * (number % 5)))
        assert reread(tmp_path) == ended(number, b"x" * 3000 * (number % 5))
    assert os.path.getsize(tmp_path / journal.NAME) < 1 << 20
    assert os.listdir(tmp_path) == [journal.NAME]


@pytest.mark.parametrize("left", [0, 1, 16, 17, 100, 4096, 5000])
def test_a_record_that_was_cut_off_leaves_the_one_before_it(tmp_path: Path, left: int) -> None:
    kept = Journal(str(tmp_path))
    kept.write(ended(1))
    before = (tmp_path / journal.NAME).read_bytes()
    kept.write(ended(2, b"x" * 9000))
    after = (tmp_path / journal.NAME).read_bytes()
    start = next(at for at in range(len(before)) if before[at] != after[at])
    (tmp_path / journal.NAME).write_bytes(after[: start + left] + before[start + left :])
    assert reread(tmp_path) == ended(1)

    again = Journal(str(tmp_path))
    again.write(begun(3))
    assert reread(tmp_path) == begun(3), "what was left of it is not read as a record later"


@pytest.mark.parametrize("content", [b"", b"{}", b"\0" * 9000, b"0000000200000000 {}", b"zzzz" * 9])
def test_what_is_no_journal_has_no_record(tmp_path: Path, content: bytes) -> None:
    (tmp_path / journal.NAME).write_bytes(content)
    assert reread(tmp_path) is None


class Disk:
    """What reached it, in order."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.synced: list[str] = []
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, self._noting(getattr(os, name)))
        patch.setattr(journal, "_sync", os.fdatasync)

    def _noting(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def noting(descriptor: int) -> None:
            sync(descriptor)
            self.synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))

        return noting


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_a_result_costs_one_write_to_the_disk_and_a_beginning_none(tmp_path: Path, disk: Disk) -> None:
    kept = Journal(str(tmp_path))
    kept.write(begun(1))
    assert disk.synced == [f"{journal.NAME}.{os.getpid()}.tmp", tmp_path.name], "a new file, then its name"
    disk.synced.clear()
    kept.write(ended(1))
    assert disk.synced == [journal.NAME]
    kept.write(begun(2))
    assert disk.synced == [journal.NAME]


def test_the_name_of_a_new_file_is_on_the_disk_too(tmp_path: Path, disk: Disk) -> None:
    atomic_file.write(str(tmp_path / "position"), b"{}", durable=True)
    assert disk.synced == [f"position.{os.getpid()}.tmp", tmp_path.name]


def test_the_directories_of_a_plans_files_are_synced_once_each(tmp_path: Path, disk: Disk) -> None:
    paths = [tmp_path / "etc" / "a", tmp_path / "etc" / "b", tmp_path / "opt" / "c"]
    plan = [File(str(path), "aGk=", False, os.geteuid(), os.getegid(), "", False) for path in paths]
    files.apply(plan)
    assert [name for name in disk.synced if not name.endswith(".tmp")] == ["etc", "opt"]
    disk.synced.clear()
    files.apply(plan)
    assert disk.synced == [], "nothing changed"
