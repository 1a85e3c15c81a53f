"""A sample of what `make soak` does at length."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_fifty_kills_break_no_promise(tmp_path: Path) -> None:
    """In a process of its own, since it forks and must have no threads."""
    command = [sys.executable, "-m", "tests.durability", "--kills", "50", "--seed", "1", "--directory", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    counts = re.search(
        r"50 kills .* (\d+) acknowledged writes, (\d+) batches seen by watches: no promise broken", run.stdout
    )
    assert counts is not None, run.stdout
    assert int(counts[1]) > 500
    assert int(counts[2]) > 100
