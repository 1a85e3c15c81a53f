"""Where the real programs are, and how tests behave if one is missing."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from peers import build


@functools.cache
def peer(name: str) -> Path:
    """The built binary. If it is missing, the test fails in CI and is skipped elsewhere."""
    path = build.path_of(name)
    if not path.exists():
        message = f"needs the peer '{name}': run 'make peers'"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path
