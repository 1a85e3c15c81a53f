"""Small files that must survive a power loss: written whole, synced, and their directory entry synced too."""

from __future__ import annotations

import os
from pathlib import Path


def create_durably(path: Path, content: bytes) -> None:
    """Make a new file for its owner alone; an existing one is left as it is and raises FileExistsError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_directory(path.parent)


def replace_durably(path: Path, content: bytes) -> None:
    """Replace a file's content at once: after a power loss it is the old or the new, never a mixture."""
    staged = path.with_name(path.name + ".new")
    staged.unlink(missing_ok=True)
    create_durably(staged, content)
    staged.replace(path)
    sync_directory(path.parent)


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    sync_file(path)


def make_directory(path: Path) -> None:
    """Make a directory for its owner alone, and those above it, unless they exist; what is made stays made."""
    if path.is_dir():
        return
    if not path.parent.is_dir():
        make_directory(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    sync_directory(path.parent)
