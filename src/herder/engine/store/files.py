"""Durable file operations: write a small file completely, fsync it, and fsync its directory entry."""

from __future__ import annotations

import os
from pathlib import Path


def create_durably(path: Path, content: bytes) -> None:
    """Create a file with mode 0600; raise FileExistsError if it exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_directory(path.parent)


def replace_durably(path: Path, content: bytes) -> None:
    """Replace the content of a file atomically: after a power loss it is the old or the new content, never a
    mixture."""
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
    """Create a directory with mode 0700 and its missing parents, and fsync their entries."""
    if path.is_dir():
        return
    if not path.parent.is_dir():
        make_directory(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    sync_directory(path.parent)
