"""Where the real programs are, and what to say when one is not there."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from peers import build


@functools.cache
def peer(name: str) -> Path:
    """The built binary. Its absence fails a test in CI, where nothing may be skipped, and skips it elsewhere."""
    path = build.path_of(name)
    if not path.exists():
        message = f"needs the peer '{name}': run 'make peers'"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path
