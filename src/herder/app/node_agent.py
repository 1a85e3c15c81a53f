"""The node agent that this manager serves. It is packed once, so that machines get what plans name by its checksum."""

from __future__ import annotations

import hashlib
import tempfile
from functools import cache
from pathlib import Path

from herder import __version__
from herder.agent.build import build
from herder.api.rke.node.agents import ServedAgent


@cache
def packed() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "agent")
        build(path)
        return path.read_bytes()


def write(path: Path) -> None:
    path.write_bytes(packed())


def served() -> str:
    """The value of the setting `served-system-agent`."""
    return str(ServedAgent(__version__, hashlib.sha256(packed()).hexdigest()))
