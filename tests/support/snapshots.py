"""Run the snapshot program as plans do: as a process with a configuration file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import herder

KILL = """
import os, sys
from herder.snapshots.program import main

def reached(step):
    if step == sys.argv[1]:
        os.kill(os.getpid(), 9)

sys.exit(main(sys.argv[2:], reached))
"""


@contextmanager
def small_disk(path: Path, size: str = "16k") -> Iterator[None]:
    """Mount a file system that is soon full."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True)


class SnapshotProgram:
    def __init__(self, directory: Path, **settings: Any) -> None:
        self.settings = settings
        self.snapshots = directory / "snapshots"
        self.file = directory / "snapshots.json"
        self.configure()

    def configure(self, **changes: Any) -> None:
        """Write the configuration file."""
        self.settings |= changes
        self.file.write_text(
            json.dumps({"directory": str(self.snapshots), "node": "server-1", "retention": 0, **self.settings})
        )
        self.file.chmod(0o600)

    def start(self, operation: str, *words: str, kill: str = "") -> subprocess.CompletedProcess[str]:
        """`kill` is the step at which the process is killed."""
        program = ["-c", KILL, kill] if kill else ["-m", "herder.snapshots"]
        environment = os.environ | {"PYTHONPATH": str(Path(herder.__file__).parents[1])}
        return subprocess.run(
            [sys.executable, *program, operation, "--config", str(self.file), *words],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=300,
        )

    def __call__(self, operation: str, *words: str) -> dict[str, Any]:
        """Run an operation that succeeds."""
        done = self.start(operation, *words)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    def fail(self, operation: str, *words: str) -> str:
        """Run an operation that fails; return the first line on stderr."""
        done = self.start(operation, *words)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        line = done.stderr.splitlines()[0]
        if operation == "save":
            (record,) = json.loads(done.stdout)["snapshots"]
            assert (record["status"], record["message"]) == ("failed", line)
        return line

    def save(self, name: str = "on-demand") -> list[dict[str, Any]]:
        saved: list[dict[str, Any]] = self("save", "--name", name)["snapshots"]
        return saved

    def files(self) -> set[str]:
        """Paths of all files but the lock."""
        found = {str(path.relative_to(self.snapshots)) for path in self.snapshots.rglob("*") if path.is_file()}
        return found - {".lock"}
