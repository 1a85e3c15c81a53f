"""Durable files with mode 0600, their hashes, and compression. Every file is streamed."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from herder.snapshots.errors import SnapshotError

PIECE = 1 << 20


class Digest(NamedTuple):
    size: int
    sha256: str


def digest_of(path: Path, offset: int = 0, size: int | None = None) -> Digest:
    """Hash a file, or a part of it."""
    hashed, count = hashlib.sha256(), 0
    with path.open("rb") as file:
        file.seek(offset)
        while piece := file.read(PIECE if size is None else min(PIECE, size - count)):
            hashed.update(piece)
            count += len(piece)
    return Digest(count, hashed.hexdigest())


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """Write a new file with mode 0600 and fsync it; remove it if that fails."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)
        error.filename = error.filename or str(path)  # write() does not know it
        raise
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def write_durably(path: Path, content: bytes) -> None:
    """Replace a small file atomically."""
    staged = path.with_name(path.name + ".new")
    staged.unlink(missing_ok=True)
    with writing(staged) as file:
        file.write(content)
    staged.replace(path)
    sync(path.parent)


def compress(source: Path, target: Path) -> None:
    with source.open("rb") as plain, writing(target) as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
        shutil.copyfileobj(plain, packed, PIECE)


def decompress(source: Path, target: Path, limit: int) -> None:
    """Unpack a file. A hostile archive could expand to more than the disk holds, so `limit` bounds its content."""
    left = limit
    try:
        with gzip.open(source) as packed, writing(target) as file:
            while piece := packed.read(PIECE):
                left -= len(piece)
                if left < 0:
                    raise SnapshotError(
                        f"{source.name}: expands to more than {limit} bytes; the file is corrupt, or the disk is full"
                    )
                file.write(piece)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise SnapshotError(f"{source.name}: is not a complete gzip file; the file is corrupt") from None


def room(directory: Path) -> int:
    """Bytes that a snapshot may take: etcd and the kubelet need the rest of the disk."""
    usage = shutil.disk_usage(directory)
    return max(0, usage.free - min(usage.total // 20, 1 << 30))


def sync(path: Path) -> None:
    """Fsync a file or a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    for directory, _, names in os.walk(path):
        for name in names:
            sync(Path(directory, name))
        sync(Path(directory))


def make_private(path: Path) -> None:
    """Create a directory with mode 0700, and its missing parents."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    path.chmod(0o700)


def remove(path: Path) -> None:
    """Remove a file or a tree, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
