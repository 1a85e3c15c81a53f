"""Build the agent as a zipapp that runs on Python 3.6 and later."""

from __future__ import annotations

import sys
from pathlib import Path

from herder.packing import write_zipapp


def build(path: Path | str) -> None:
    write_zipapp("agent", Path(path), without=("build.py",))


if __name__ == "__main__":
    build(sys.argv[1])
