"""Power loss, simulated at the level of files: run traffic under a trace of every write and sync, then rebuild the disk
as it may have been at many moments, and check the store's guarantees on each.

The tracer is a small C library, built with the installed compiler (`cc`, in Debian's build-essential).
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import uvloop

from herder.engine.store import Store

from .checker import Checker, GuaranteeViolation
from .disk import Step, after_power_loss, read_trace
from .traffic import Line, Traffic, open_store

MOMENTS_PER_TRACE = 50
_DECODER = msgspec.json.Decoder(Line)
_SOURCE = Path(__file__).with_name("disk_trace.c")


class PowerLosses:
    """Counts for the summary of a run."""

    def __init__(self) -> None:
        self.disks = 0
        self.traces = 0
        self.acknowledged = 0

    def __str__(self) -> str:
        return (
            f"{self.disks} disks after power loss from {self.traces} runs, "
            f"{self.acknowledged} acknowledged writes checked: no guarantee violated"
        )


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


def run(disks: int, seed: int, directory: Path | None = None, *, unsafe: bool = False) -> PowerLosses:
    """Rebuild that many disks. `unsafe` runs the store without syncs, which the checker must detect."""
    done = PowerLosses()
    base = Path(tempfile.mkdtemp(prefix="herder-power-", dir=directory)).resolve()
    try:
        tracer = build(base)
        while done.disks < disks:
            steps = trace(base, tracer, f"{seed}.{done.traces}", unsafe=unsafe)
            pick = random.Random(f"{seed}/{done.traces}")
            done.traces += 1
            for moment in sorted(pick.sample(moments_of(steps, base), min(MOMENTS_PER_TRACE, disks - done.disks))):
                try:
                    done.acknowledged += lose_power(steps[:moment], base, pick)
                except Exception as error:
                    error.add_note(f"seed {seed}, trace {done.traces - 1}, after step {moment} of {len(steps)}")
                    raise
                done.disks += 1
    finally:
        shutil.rmtree(base)
    return done


def build(base: Path) -> Path:
    cc = compiler()
    if cc is None:
        raise FileNotFoundError("the power-loss test needs a C compiler (cc)")
    library = base / "disk_trace.so"
    subprocess.run([cc, "-O1", "-shared", "-fPIC", "-o", library, _SOURCE, "-ldl", "-lpthread"], check=True)
    return library


def trace(base: Path, tracer: Path, seed: str, *, unsafe: bool) -> list[Step]:
    """Run the traffic of one process under the tracer; its report is a traced file, so the order is known."""
    root = base / "disk"
    root.mkdir()
    recorded = base / "trace"
    environment = {**os.environ, "LD_PRELOAD": str(tracer), "DISK_TRACE": str(recorded), "DISK_TRACE_ROOT": str(root)}
    command = [sys.executable, "-m", "tests.durability.power_loss", str(root), seed, "unsafe" if unsafe else "safe"]
    subprocess.run(command, env=environment, cwd=Path(__file__).parents[2], check=True)
    steps = read_trace(recorded)
    shutil.rmtree(root)
    recorded.unlink()
    return steps


def moments_of(steps: list[Step], base: Path) -> list[int]:
    """Moments for a power loss: after each step except reports, and after each acknowledgement."""
    report = str(base / "disk" / "report")
    moments = []
    for number, step in enumerate(steps, start=1):
        if step.path != report:
            moments.append(number)
        elif b'"type":"acknowledged"' in step.data:
            moments += [number]
    return moments


def lose_power(steps: list[Step], base: Path, pick: random.Random) -> int:
    """Rebuild one disk and check its store; return the number of acknowledged writes in the report."""
    root = base / "disk"
    report = str(root / "report")
    lines = b"".join(step.data for step in steps if step.path == report and step.kind == "W").split(b"\n")[:-1]
    files = after_power_loss(steps, pick if pick.random() < 0.7 else None)
    files.pop(report, None)
    root.mkdir()
    (root / "store").mkdir(mode=0o700)
    try:
        for path, content in files.items():
            Path(path).write_bytes(content)
            Path(path).chmod(0o600)
        uvloop.run(check(root / "store", [_DECODER.decode(line) for line in lines], pick))
    finally:
        shutil.rmtree(root)
    return sum(b'"type":"acknowledged"' in line for line in lines)


async def check(path: Path, report: list[Line], pick: random.Random) -> None:
    store = open_store(path)
    try:
        damage = store._database.connection.execute("PRAGMA integrity_check").fetchone()
        if damage != ("ok",):
            raise GuaranteeViolation(f"the database is damaged: {damage}")
        await Checker().check(store, report, pick)
    finally:
        await store.close()


def main(root: Path, seed: str, mode: str) -> None:
    """The traced process."""
    reports = os.open(root / "report", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def report(line: Line) -> None:
        os.write(reports, msgspec.json.encode(line) + b"\n")

    def prepare(store: Store) -> None:
        if mode == "unsafe":
            store._database.connection.execute("PRAGMA synchronous = OFF")

    uvloop.run(Traffic(root / "store", report, seed=seed, limit=400).run(prepare))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
