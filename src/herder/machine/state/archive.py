"""The archive in the state Secret: a gzipped tar with the absolute paths of all machines' files.

rancher-machine unpacks it to those paths, so names, modes and exclusions match its own. Equal files give equal bytes.
"""

from __future__ import annotations

import gzip
import io
import posixpath
import tarfile
import zlib
from collections.abc import Mapping

from herder.machine.errors import MachineError

SKIPPED_SUFFIXES = (".iso", ".tar.gz", ".vmdk", ".img")  # too large for a Secret, and recreated when needed
LARGEST = 64 << 20  # a Secret holds 1 MiB; larger contents are malicious


def pack(files: Mapping[str, bytes]) -> bytes:
    """Pack files by absolute path, `<store>/machines/NAME/…`; empty for none."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted({*files, *_directories(files)}):
            if path.endswith(SKIPPED_SUFFIXES):
                continue
            tar.addfile(*_entry(path, files.get(path)))
    return gzip.compress(buffer.getvalue(), mtime=0)


def unpack(data: bytes) -> dict[str, bytes]:
    """Unpack the files by path; directories are implied."""
    if not data:
        return {}
    try:
        unzipped = zlib.decompressobj(wbits=31)
        content = unzipped.decompress(data, LARGEST)
        if not unzipped.eof and not unzipped.unconsumed_tail:
            raise EOFError("it ends too early")
        if not unzipped.eof:
            raise MachineError("the state archive is too large")
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            return {_absolute(entry.name): _content(tar, entry) for entry in tar if entry.isfile()}
    except (zlib.error, EOFError, ValueError, OverflowError, RecursionError, tarfile.TarError) as error:
        raise MachineError(
            f"cannot read the state archive: {error}",
            "restore the Secret from a backup, or delete the instance at its provider and then the Secret",
        ) from error


def _directories(files: Mapping[str, bytes]) -> set[str]:
    """Return the directories below `machines`."""
    found = set()
    for path in files:
        directory = posixpath.dirname(path)
        while posixpath.basename(directory) != "machines" and directory not in ("", "/"):
            found.add(directory)
            directory = posixpath.dirname(directory)
    return found


def _entry(path: str, content: bytes | None) -> tuple[tarfile.TarInfo, io.BytesIO | None]:
    entry = tarfile.TarInfo(path)
    if content is None:
        entry.type, entry.mode = tarfile.DIRTYPE, 0o700
        return entry, None
    entry.mode, entry.size = 0o600, len(content)
    return entry, io.BytesIO(content)


def _absolute(name: str) -> str:
    return posixpath.normpath("/" + name.lstrip("/"))


def _content(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    if entry.issparse():  # a few bytes of a sparse file stand for gigabytes of memory
        raise ValueError(f"{entry.name} is a sparse file")
    stream = tar.extractfile(entry)
    return stream.read() if stream is not None else b""
