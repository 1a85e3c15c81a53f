"""A short sample of `make soak`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_fifty_kills_violate_no_guarantee(tmp_path: Path) -> None:
    """Runs in its own process, because it forks and must have no threads."""
    command = [sys.executable, "-m", "tests.durability", "--kills", "50", "--seed", "1", "--directory", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    counts = re.search(
        r"50 kills .* (\d+) acknowledged writes, (\d+) batches seen by watches: no guarantee violated", run.stdout
    )
    assert counts is not None, run.stdout
    assert int(counts[1]) > 500
    assert int(counts[2]) > 100
