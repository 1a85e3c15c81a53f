"""Snapshots in S3: FOLDER/NAME, and their metadata in FOLDER/.metadata/NAME."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from herder.snapshots.config import S3Config
from herder.snapshots.errors import NotFound, TooLarge
from herder.snapshots.files import Digest
from herder.snapshots.names import is_ahead, is_snapshot, seconds_of
from herder.snapshots.records import LIMIT, Record, found
from herder.snapshots.s3.client import Bucket

MAX_LISTED = 200
MAX_LISTED_METADATA = 512 << 10  # bytes, of all snapshots together


class Remote:
    def __init__(self, config: S3Config, bucket: Bucket | None = None) -> None:
        self.config = config
        self.bucket = bucket or Bucket(config)
        self._prefix = f"{config.folder}/" if config.folder else ""

    def close(self) -> None:
        self.bucket.close()

    def upload(self, record: Record, path: Path) -> Record:
        """Upload a snapshot. The metadata is written first: no snapshot is ever without it."""
        try:
            self.bucket.put_bytes(self._metadata(record.name), record.encoded())
            self.bucket.put(self._key(record.name), path, Digest(record.size, record.sha256))
        except BaseException:
            self.discard(record.name)
            raise
        return record.at(self._location(record.name))

    def discard(self, name: str) -> None:
        """Remove what a failed upload has left. The first error is the one to report."""
        with suppress(Exception):
            self.delete(name)

    def download(self, name: str, path: Path) -> Digest:
        return self.bucket.get(self._key(name), path)

    def records(self) -> list[Record]:
        """Return the newest snapshots, in the order of their age; those in the future first.

        Who can write to the bucket chooses the number of objects and their metadata. So both are limited: the manager
        reads no report that is too large, and would not learn of local snapshots either.
        """
        now = time.time()
        by_age = sorted(self.sizes().items(), key=lambda each: (not is_ahead(each[0], now), seconds_of(each[0])))
        newest = by_age[-MAX_LISTED:]
        left, records = MAX_LISTED_METADATA, []
        for name, size in reversed(newest):
            try:
                kept = self._kept(name, left)
            except TooLarge:
                kept = None
            left -= len(kept or b"")
            records.append(found(name, size, self._location(name), kept))
        return records[::-1]

    def sizes(self) -> dict[str, int]:
        """Return the names of all snapshots, with their sizes."""
        names = ((key[len(self._prefix) :], size) for key, size in self.bucket.keys(self._prefix))
        return {name: size for name, size in names if is_snapshot(name)}

    def record(self, name: str, size: int) -> Record:
        return found(name, size, self._location(name), self._kept(name))

    def delete(self, name: str) -> None:
        self.bucket.delete(self._key(name))
        self.bucket.delete(self._metadata(name))

    def abort_uploads(self, name: str) -> None:
        """Remove the parts of killed uploads of snapshots whose names start with this one."""
        self.bucket.abort_uploads(self._key(name))

    def _kept(self, name: str, limit: int = LIMIT) -> bytes | None:
        try:
            return self.bucket.get_bytes(self._metadata(name), limit)
        except NotFound:
            return None

    def _key(self, name: str) -> str:
        return f"{self._prefix}{name}"

    def _metadata(self, name: str) -> str:
        return f"{self._prefix}.metadata/{name}"

    def _location(self, name: str) -> str:
        return f"s3://{self.config.bucket}/{self._key(name)}"
