"""Images from a directory of archives beside the manager: for machines that can reach nothing else.

An archive is a tar in the standard's layout. Blobs are read where they lie in it; what is added to the directory, or
replaced, is seen at the next request.
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

PIECE = 1 << 20
NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
_MOST_INDEX = 4 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """Some bytes of a file."""

    file: Path
    start: int
    size: int

    async def pieces(self) -> AsyncIterator[bytes]:
        with self.file.open("rb") as file:
            for done in range(0, self.size, PIECE):
                length = min(PIECE, self.size - done)
                yield await asyncio.to_thread(os.pread, file.fileno(), length, self.start + done)

    def content(self) -> bytes:
        with self.file.open("rb") as file:
            return os.pread(file.fileno(), self.size, self.start)


@dataclass(frozen=True)
class Archive:
    blobs: dict[str, Place] = field(default_factory=dict)  # by digest
    tags: dict[tuple[str, str], str] = field(default_factory=dict)  # repository and tag → digest of the manifest


@dataclass(frozen=True, slots=True)
class Repository:
    """One repository, over all archives."""

    repository: str
    archives: tuple[Archive, ...]

    async def manifest(self, reference: str) -> bytes | None:
        digest = reference if reference.startswith("sha256:") else self._tagged(reference)
        place = self.blob(digest) if digest else None
        return await asyncio.to_thread(place.content) if place is not None and place.size <= _MOST_INDEX else None

    def blob(self, digest: str) -> Place | None:
        return next((each.blobs[digest] for each in self._own() if digest in each.blobs), None)

    def _tagged(self, tag: str) -> str:
        return next(
            (each.tags[self.repository, tag] for each in self._own() if (self.repository, tag) in each.tags), ""
        )

    def _own(self) -> list[Archive]:
        return [each for each in self.archives if any(name == self.repository for name, _ in each.tags)]


class Archives:
    """`directory` is asked each time, for it may be changed while running; "" for none."""

    def __init__(self, directory: Callable[[], str]) -> None:
        self._directory = directory
        self._known: dict[tuple[str, int, int], Archive] = {}

    async def repository(self, name: str) -> Repository | None:
        archives = await asyncio.to_thread(self._read)
        found = Repository(name, tuple(archives))
        return found if any(own == name for each in archives for own, _ in each.tags) else None

    def _read(self) -> list[Archive]:
        """Each archive once, for as long as it is the same file."""
        known: dict[tuple[str, int, int], Archive] = {}
        directory = self._directory()
        for file in sorted(Path(directory).glob("*.tar")) if directory else ():
            stat = file.stat()
            key = (str(file), stat.st_size, stat.st_mtime_ns)
            known[key] = self._known.get(key) or _read(file)
        self._known = known
        return list(known.values())


def _read(file: Path) -> Archive:
    """Empty for what is no archive of images, which is told once."""
    try:
        with tarfile.open(file, "r:") as archive:
            entries = {entry.name.removeprefix("./"): entry for entry in archive if entry.isfile()}
    except (OSError, tarfile.TarError) as problem:
        log.warning("an archive cannot be read", file=file.name, problem=str(problem))
        return Archive()
    places = {name: Place(file, entry.offset_data, entry.size) for name, entry in entries.items()}
    blobs = {
        f"sha256:{name.rpartition('/')[2]}": place for name, place in places.items() if name.startswith("blobs/sha256/")
    }
    index = places.get("index.json")
    if index is None or index.size > _MOST_INDEX:
        log.warning("an archive has no index", file=file.name)
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
    """As clients ask for it at whatever host: `registry.example:5000/herder/x` is `herder/x` there."""
    host, slash, rest = repository.partition("/")
    return rest if slash and ("." in host or ":" in host or host == "localhost") else repository
