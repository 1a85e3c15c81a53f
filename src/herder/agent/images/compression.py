"""Open compressed streams, with the standard library or an external program."""

import bz2
import gzip
import os
import subprocess
from contextlib import contextmanager
from typing import IO, Iterator, cast

from herder.agent.images.reference import ImageError

_MAGICS = ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh", "bzip2"), (b"\x04\x22\x4d\x18", "lz4"))


def is_compressed(path: str) -> bool:
    with open(path, "rb") as stream:
        return _kind(stream.read(4)) != ""


@contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    """Open a file decompressed; the format is detected by its first bytes, not its name."""
    with open(path, "rb") as stream:
        kind = _kind(stream.read(4))
        stream.seek(0)
        if kind == "gzip":
            with gzip.GzipFile(fileobj=stream) as unzipped:
                yield cast(IO[bytes], unzipped)
        elif kind == "bzip2":
            with bz2.BZ2File(stream) as unzipped_bz2:
                yield cast(IO[bytes], unzipped_bz2)
        elif kind:
            with _piped(kind, stream, path) as piped:
                yield piped
        else:
            yield stream


def _kind(start: bytes) -> str:
    return next((kind for magic, kind in _MAGICS if start.startswith(magic)), "")


@contextmanager
def _piped(program: str, stream: IO[bytes], path: str) -> Iterator[IO[bytes]]:
    os.lseek(stream.fileno(), 0, os.SEEK_SET)  # the program must also read what was buffered here
    try:
        process = subprocess.Popen([program, "-d", "-c"], stdin=stream, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except FileNotFoundError:
        raise ImageError(f"{path} is compressed with {program}: install {program} on this node") from None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        yield process.stdout
        process.stdout.read()
        if process.wait() != 0:
            raise ImageError(f"{path}: {program}: {process.stderr.read().decode('utf-8', 'replace').strip()[:200]}")
    finally:
        process.stdout.close()
        process.stderr.close()
        process.kill()
        process.wait()
