"""Container images from OCI archives in a directory, for air-gapped machines.

An archive is a tar in OCI layout. Blobs are read in place; added or replaced archives are seen at the next request.
"""

from __future__ import annotations

import asyncio
import json
import os
import tarfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from herder.engine.logs import get_logger

log = get_logger(__name__)

CHUNK_BYTES = 1 << 20
NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
_MAX_INDEX_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class BlobLocation:
    """A byte range of a file."""

    file: Path
    start: int
    size: int

    async def chunks(self) -> AsyncIterator[bytes]:
        with self.file.open("rb") as file:
            for done in range(0, self.size, CHUNK_BYTES):
                length = min(CHUNK_BYTES, self.size - done)
                yield await asyncio.to_thread(os.pread, file.fileno(), length, self.start + done)

    def content(self) -> bytes:
        with self.file.open("rb") as file:
            return os.pread(file.fileno(), self.size, self.start)


@dataclass(frozen=True)
class Archive:
    """Index of one archive."""

    blobs: dict[str, BlobLocation] = field(default_factory=dict)  # location by digest
    tags: dict[tuple[str, str], str] = field(default_factory=dict)  # (repository, tag) → manifest digest


@dataclass(frozen=True, slots=True)
class Repository:
    """One repository, across all archives."""

    repository: str
    archives: tuple[Archive, ...]

    async def manifest(self, reference: str) -> bytes | None:
        digest = reference if reference.startswith("sha256:") else self._tagged(reference)
        location = self.blob(digest) if digest else None
        return (
            await asyncio.to_thread(location.content)
            if location is not None and location.size <= _MAX_INDEX_BYTES
            else None
        )

    def blob(self, digest: str) -> BlobLocation | None:
        return next((each.blobs[digest] for each in self._containing() if digest in each.blobs), None)

    def _tagged(self, tag: str) -> str:
        return next(
            (each.tags[self.repository, tag] for each in self._containing() if (self.repository, tag) in each.tags), ""
        )

    def _containing(self) -> list[Archive]:
        return [each for each in self.archives if any(name == self.repository for name, _ in each.tags)]


class Archives:
    """`directory` is called for each request, since the setting may change; "" for none."""

    def __init__(self, directory: Callable[[], str]) -> None:
        self._directory = directory
        self._known: dict[tuple[str, int, int], Archive] = {}

    async def repository(self, name: str) -> Repository | None:
        archives = await asyncio.to_thread(self._read)
        found = Repository(name, tuple(archives))
        return found if any(own == name for each in archives for own, _ in each.tags) else None

    def _read(self) -> list[Archive]:
        """Parse each archive once, as long as the file is unchanged."""
        known: dict[tuple[str, int, int], Archive] = {}
        directory = self._directory()
        for file in sorted(Path(directory).glob("*.tar")) if directory else ():
            stat = file.stat()
            key = (str(file), stat.st_size, stat.st_mtime_ns)
            known[key] = self._known.get(key) or _read(file)
        self._known = known
        return list(known.values())


def _read(file: Path) -> Archive:
    """Index of an archive; empty, with one warning, if it is not an image archive."""
    try:
        with tarfile.open(file, "r:") as archive:
            entries = {entry.name.removeprefix("./"): entry for entry in archive if entry.isfile()}
    except (OSError, tarfile.TarError) as problem:
        log.warning("cannot read image archive", file=file.name, problem=str(problem))
        return Archive()
    locations = {name: BlobLocation(file, entry.offset_data, entry.size) for name, entry in entries.items()}
    blobs = {
        f"sha256:{name.rpartition('/')[2]}": location
        for name, location in locations.items()
        if name.startswith("blobs/sha256/")
    }
    index = locations.get("index.json")
    if index is None or index.size > _MAX_INDEX_BYTES:
        log.warning("image archive has no index.json", file=file.name)
        return Archive()
    return Archive(blobs, _tags(index.content()))


def _tags(index: bytes) -> dict[tuple[str, str], str]:
    tags: dict[tuple[str, str], str] = {}
    for each in json.loads(index).get("manifests") or ():
        status = each.get("annotations") or {}
        for name in filter(None, (status.get(key) for key in NAMES)):
            repository, colon, tag = str(name).rpartition(":")
            if colon and "/" not in tag:
                tags[_without_host(repository), tag] = str(each["digest"])
    return tags


def _without_host(repository: str) -> str:
    """Repository without the registry host: `registry.example:5000/herder/x` becomes `herder/x`."""
    host, slash, rest = repository.partition("/")
    return rest if slash and ("." in host or ":" in host or host == "localhost") else repository
