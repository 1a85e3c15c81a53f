"""Files with secrets: readable by their owner only, and replaced atomically."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click


def write_private(path: Path, text: str) -> None:
    """Replace the file atomically. If it is a symlink, its target is replaced."""
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, staged = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # created with mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        Path(staged).replace(path)
    except BaseException:
        Path(staged).unlink(missing_ok=True)
        raise


def check_private(path: Path) -> None:
    if path.stat().st_mode & 0o077:
        raise click.ClickException(f"{path}: other users can read this file; run chmod 600 on it and log in again")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Take the lock file that kubectl also uses before it changes a kubeconfig."""
    lock = path.resolve().with_name(f"{path.resolve().name}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise click.ClickException(f"{path}: locked by another process; if none is running, delete {lock}") from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
