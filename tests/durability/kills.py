"""kill -9 at a random moment, repeatedly on the same store.

Each victim is forked from this process, which saves the start of an interpreter; it has no threads and no open store
while it forks.
"""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path

import msgspec
import uvloop

from .checker import Checker
from .traffic import Failed, Line, Opened, Traffic, open_store

KILLS_PER_STORE = 20
_DECODER = msgspec.json.Decoder(Line)


class Kills:
    """Counts for the summary of a run."""

    def __init__(self) -> None:
        self.kills = 0
        self.acknowledged = 0
        self.committed = 0
        self.seen = 0
        self.while_opening = 0

    def __str__(self) -> str:
        return (
            f"{self.kills} kills ({self.while_opening} while opening), {self.committed} committed changes, "
            f"{self.acknowledged} acknowledged writes, {self.seen} batches seen by watches: no guarantee violated"
        )


def run(kills: int, seed: int, directory: Path | None = None) -> Kills:
    """Kill that many processes; a violation raises an error and keeps the store for inspection."""
    done = Kills()
    base = Path(tempfile.mkdtemp(prefix="herder-kills-", dir=directory))
    for number, first in enumerate(range(0, kills, KILLS_PER_STORE)):
        store = base / f"store-{number}"
        pick = random.Random(f"{seed}/{number}")
        checker = Checker()
        for number_of_kill in range(first, min(first + KILLS_PER_STORE, kills)):
            report = run_victim(store, f"{seed}.{number_of_kill}", pick)
            try:
                uvloop.run(check(store, checker, report, pick))
            except Exception as error:
                error.add_note(f"seed {seed}, kill {number_of_kill}, store {store}")
                raise
            done.kills += 1
            done.acknowledged += sum(type(line).__name__ == "Acknowledged" for line in report)
            done.seen += sum(type(line).__name__ == "Seen" for line in report)
            done.while_opening += not any(isinstance(line, Opened) for line in report)
        done.committed += len(checker.facts)
        shutil.rmtree(store)
    shutil.rmtree(base)
    return done


async def check(path: Path, checker: Checker, report: list[Line], pick: random.Random) -> None:
    """Check the store; half of the time a copy of it, so that the next process has to recover the original."""
    copied = pick.random() < 0.5 and path.exists()
    if copied:
        copy = path.with_name("copy")
        shutil.copytree(path, copy)
        shutil.copy(path.with_name(f"{path.name}.key"), copy.with_name("copy.key"))
        path = copy
    store = open_store(path)
    try:
        await checker.check(store, report, pick)
    finally:
        await store.close()
    if copied:
        shutil.rmtree(path)


def run_victim(directory: Path, seed: str, pick: random.Random) -> list[Line]:
    """Fork a process that generates traffic, kill it after a random time, and return its report."""
    reading, writing = os.pipe()
    victim = os.fork()
    if victim == 0:
        os.close(reading)
        run_traffic(directory, writing, seed)
    os.close(writing)
    try:
        delay = pick.random() * 0.02 if pick.random() < 0.2 else 0.01 + pick.random() * 0.25
        return parse(read_until_killed(reading, victim, delay))
    finally:
        os.close(reading)


def run_traffic(directory: Path, writing: int, seed: str) -> None:
    """The victim: generates traffic until it is killed. Never returns to the code of its parent."""

    def report(line: Line) -> None:
        os.write(writing, msgspec.json.encode(line) + b"\n")

    try:
        uvloop.run(Traffic(directory, report, seed=seed).run())
    except BaseException as error:
        report(Failed(repr(error)))
    finally:
        os._exit(1)


def read_until_killed(reading: int, victim: int, delay: float) -> bytes:
    content = bytearray()
    deadline = time.monotonic() + delay
    killed = False
    while True:
        left = deadline - time.monotonic()
        if left <= 0 and not killed:
            os.kill(victim, signal.SIGKILL)
            os.waitpid(victim, 0)
            killed = True
        ready, _, _ = select.select([reading], [], [], max(0.0, left) if not killed else None)
        if ready:
            chunk = os.read(reading, 1 << 16)
            if not chunk:
                break
            content += chunk
    if not killed:
        os.waitpid(victim, 0)
    return bytes(content)


def parse(content: bytes) -> list[Line]:
    """The complete lines; the kill may have truncated the last one."""
    return [_DECODER.decode(line) for line in content.split(b"\n")[:-1]]
