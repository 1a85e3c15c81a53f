"""Files that are there completely or not at all, also after a crash."""

import contextlib
import os
from typing import Optional


def write(path: str, content: bytes, mode: int = 0o600, durable: bool = False) -> None:
    """Whoever reads finds the old content or the new one, whole; `durable` also after a power failure."""
    temporary = f"{path}.{os.getpid()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        os.rename(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def read(path: str) -> Optional[bytes]:
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
