from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from herder.engine.runner.logs import LogOptions, read, tail_text
from herder.engine.runner.shim.logfile import PARTIAL_BYTES, LogFile


async def read_log(path: Path, options: LogOptions | None = None) -> bytes:
    return b"".join([chunk async for chunk in read(path, options or LogOptions(), ended=lambda: True)])


def write_log(path: Path, *pieces: bytes, limit: int = 1 << 20) -> None:
    log = LogFile(str(path), limit=limit, keep=3)
    for piece in pieces:
        log.write("stdout", piece)
    log.close()


async def test_a_log_is_read_byte_for_byte(tmp_path: Path) -> None:
    said = b"one\ntwo\n\n" + b"x" * (3 * PARTIAL_BYTES + 17) + b"\n\xff\xfe odd bytes\nno end"
    write_log(tmp_path / "log", *[said[i : i + 1000] for i in range(0, len(said), 1000)])
    assert await read_log(tmp_path / "log") == said


async def test_lines_of_both_streams_are_not_interleaved(tmp_path: Path) -> None:
    log = LogFile(str(tmp_path / "log"), limit=1 << 20, keep=3)
    log.write("stdout", b"out ")
    log.write("stderr", b"err ")
    log.write("stdout", b"one\n")
    log.write("stderr", b"two\n")
    log.close()
    assert await read_log(tmp_path / "log") == b"out one\nerr two\n"


@pytest.mark.parametrize(("tail", "found"), [(0, b""), (1, b"line 4\n"), (2, b"line 3\nline 4\n"), (99, None)])
async def test_tail_lines_limit_the_log(tmp_path: Path, tail: int, found: bytes | None) -> None:
    whole = b"".join(b"line %d\n" % i for i in range(5))
    write_log(tmp_path / "log", whole)
    assert await read_log(tmp_path / "log", LogOptions(tail_lines=tail)) == (whole if found is None else found)


async def test_limit_bytes_truncates_anywhere(tmp_path: Path) -> None:
    write_log(tmp_path / "log", b"12345\n67890\n")
    assert await read_log(tmp_path / "log", LogOptions(limit_bytes=8)) == b"12345\n67"


async def test_since_time_limits_the_log(tmp_path: Path) -> None:
    records = b"2026-01-01T10:00:00.000000001Z stdout F old\n2026-01-01T10:00:05.500000000Z stderr F new\n"
    (tmp_path / "log").write_bytes(records)
    since = datetime(2026, 1, 1, 10, 0, 5, tzinfo=UTC)
    assert await read_log(tmp_path / "log", LogOptions(since=since)) == b"new\n"
    stamped = await read_log(tmp_path / "log", LogOptions(since=since, timestamps=True))
    assert stamped == b"2026-01-01T10:00:05.500000000Z new\n"


async def test_rotated_files_are_read_until_they_are_deleted(tmp_path: Path) -> None:
    write_log(tmp_path / "log", *[b"line %04d\n" % i for i in range(100)], limit=2000)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["log", "log.1", "log.2"]
    lines = (await read_log(tmp_path / "log")).split(b"\n")[:-1]
    assert lines[-1] == b"line 0099"
    assert lines == [b"line %04d" % i for i in range(100 - len(lines), 100)]


async def test_following_a_log_misses_nothing_over_a_rotation(tmp_path: Path) -> None:
    log, ended = LogFile(str(tmp_path / "log"), limit=3000, keep=50), asyncio.Event()

    async def follow() -> bytes:
        options = LogOptions(follow=True)
        return b"".join([chunk async for chunk in read(tmp_path / "log", options, ended=ended.is_set)])

    following = asyncio.ensure_future(follow())
    for number in range(60):
        log.write("stdout", b"line %04d\n" % number)
        if number % 20 == 0:
            await asyncio.sleep(0.15)
    log.close()
    ended.set()
    assert (await following).split(b"\n")[:-1] == [b"line %04d" % number for number in range(60)]


async def test_the_end_of_a_log_is_used_as_termination_message(tmp_path: Path) -> None:
    write_log(tmp_path / "log", b"".join(b"line %d\n" % i for i in range(200)))
    assert tail_text(tmp_path / "log", lines=2, limit=2048) == "line 198\nline 199\n"
    assert tail_text(tmp_path / "log", lines=80, limit=5) == " 199\n"
    assert tail_text(tmp_path / "absent", lines=80, limit=5) == ""
