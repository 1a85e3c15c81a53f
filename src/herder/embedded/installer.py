"""Installer image of the embedded distribution: Herder as installed here, and its setup script.

The large layer is the same for all versions; a second, small one contains the version, so that an upgrade costs a few
KiB. Built on first use, in an unlinked temporary file.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources

from herder.oci import CONFIG, MANIFEST, PLAIN_LAYER, Entry, as_json, digest_of, processor, tar
from herder.packing import packed

REPOSITORY = "herder/system-agent-installer-herder"
NEEDED = ("aiohttp", "cryptography", "httptools", "msgspec", "pyyaml")
PIECE = 1 << 20

_TAG = re.compile(r"v1\.(?:0|[1-9][0-9]{0,2})\.(?:0|[1-9][0-9]{0,2})-herder[1-9][0-9]{0,3}")


@dataclass(frozen=True, slots=True)
class Blob:
    digest: str
    size: int
    content: bytes = field(repr=False, default=b"")
    file: int = -1  # descriptor, if it is too large for memory

    async def chunks(self) -> AsyncIterator[bytes]:
        if self.file < 0:
            yield self.content
            return
        for start in range(0, self.size, PIECE):
            yield await asyncio.to_thread(os.pread, self.file, PIECE, start)


class InstallerImage:
    """One image per version tag."""

    repository = REPOSITORY

    def __init__(self) -> None:
        self._blobs: dict[str, Blob] = {}
        self._manifests: dict[str, bytes] = {}
        self._making = asyncio.Lock()

    async def manifest(self, reference: str) -> bytes | None:
        """Return the manifest by tag or digest; None if the version is invalid."""
        if reference.startswith("sha256:"):
            return next((each for each in self._manifests.values() if digest_of(each) == reference), None)
        if not _TAG.fullmatch(reference):
            return None
        async with self._making:
            if reference not in self._manifests:
                payload = await asyncio.to_thread(lambda: self._payload)
                self._manifests[reference] = self._make(reference, payload)
        return self._manifests[reference]

    def blob(self, digest: str) -> Blob | None:
        return self._blobs.get(digest)

    @cached_property
    def _payload(self) -> Blob:
        content = packed("payload", NEEDED)
        with tempfile.TemporaryFile() as file:  # unlinked: exists as long as its descriptor
            file.write(content)
            file.flush()
            kept = os.dup(file.fileno())
        return Blob(digest_of(content), len(content), file=kept)

    def _make(self, tag: str, payload: Blob) -> bytes:
        version = tag.replace("-", "+", 1)
        small = _blob(_how_to_install(version, payload.digest.removeprefix("sha256:")[:16]))
        layers = (payload, small)
        config = _blob(
            as_json(
                {
                    "architecture": processor(),
                    "os": "linux",
                    "config": {},
                    "rootfs": {"type": "layers", "diff_ids": [each.digest for each in layers]},
                }
            )
        )
        for each in (*layers, config):
            self._blobs[each.digest] = each
        return as_json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": {"mediaType": CONFIG, "digest": config.digest, "size": config.size},
                "layers": [{"mediaType": PLAIN_LAYER, "digest": each.digest, "size": each.size} for each in layers],
            }
        )


def _how_to_install(version: str, payload: str) -> bytes:
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    script = resources.files("herder.embedded").joinpath("run.sh").read_bytes()
    files = {
        "PAYLOAD": (payload.encode(), 0o644),
        "PYTHON": (python.encode(), 0o644),
        "VERSION": (version.encode(), 0o644),
        "run.sh": (script, 0o755),
    }
    return tar(Entry(name, body, mode) for name, (body, mode) in files.items())


def _blob(content: bytes) -> Blob:
    return Blob(digest_of(content), len(content), content)
