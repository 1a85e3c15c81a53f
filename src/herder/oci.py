"""Build OCI images from files: layers, config, manifest and archive."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import shutil
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

MANIFEST, INDEX = "application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
PLAIN_LAYER, PACKED_LAYER = "application/vnd.oci.image.layer.v1.tar", "application/vnd.oci.image.layer.v1.tar+gzip"
PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64"}
QUICKLY = 1  # compression level: higher ones take several times as long and save little on binaries

Content = bytes | Path
"""Bytes, or a file if it is too large for memory."""


def processor() -> str:
    return PROCESSORS.get(platform.machine(), platform.machine())


def digest_of(content: Content) -> str:
    with opened(content) as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def size_of(content: Content) -> int:
    return content.stat().st_size if isinstance(content, Path) else len(content)


def opened(content: Content) -> io.BufferedReader | io.BytesIO:
    return content.open("rb") if isinstance(content, Path) else io.BytesIO(content)


def as_json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


# --- files in a tar ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in a layer, with its content or its source."""

    path: str
    content: Content
    mode: int = 0o644


def tar(entries: Iterable[Entry]) -> bytes:
    content = io.BytesIO()
    write_tar(entries, content)
    return content.getvalue()


def write_tar(entries: Iterable[Entry], to: IO[bytes]) -> None:
    """Deterministic: equal entries give equal bytes."""
    with tarfile.open(fileobj=to, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            header = tarfile.TarInfo(entry.path)
            header.size, header.mode = size_of(entry.content), entry.mode
            with opened(entry.content) as body:
                archive.addfile(header, body)


# --- images -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layer:
    content: Content = field(repr=False)
    diff_id: str  # digest of the uncompressed layer
    media_type: str

    @staticmethod
    def plain(content: Content) -> Layer:
        return Layer(content, digest_of(content), PLAIN_LAYER)

    @staticmethod
    def packed(content: bytes) -> Layer:
        return Layer(gzip.compress(content, QUICKLY, mtime=0), digest_of(content), PACKED_LAYER)

    @staticmethod
    def packed_file(content: Path, into: Path) -> Layer:
        """Compress a file into another."""
        with content.open("rb") as file, into.open("wb") as raw, gzip.GzipFile("", "wb", QUICKLY, raw, 0) as packing:
            shutil.copyfileobj(file, packing, 1 << 20)
        return Layer(into, digest_of(content), PACKED_LAYER)

    def described(self) -> dict[str, Any]:
        return {"mediaType": self.media_type, "digest": digest_of(self.content), "size": size_of(self.content)}


@dataclass(frozen=True, slots=True)
class Image:
    manifest: bytes
    blobs: Mapping[str, Content] = field(repr=False)  # by digest, including the config


def image(
    layers: Sequence[Layer], running: Mapping[str, Any] | None = None, *, created: str = "", architecture: str = ""
) -> Image:
    """Build an image; `running` is its runtime configuration: Entrypoint, Env and the like.

    `created`: an RFC 3339 time, by default none. `architecture`: by default that of this host.
    """
    config = as_json(
        {
            **({"created": created} if created else {}),
            "architecture": architecture or processor(),
            "os": "linux",
            "config": dict(running or {}),
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        }
    )
    described = [layer.described() for layer in layers]
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, "digest": digest_of(config), "size": len(config)},
        "layers": described,
    }
    blobs = {reported["digest"]: layer.content for reported, layer in zip(described, layers, strict=True)}
    return Image(as_json(manifest), {**blobs, digest_of(config): config})


def write_archive(made: Image, name: str, to: IO[bytes], architecture: str = "") -> None:
    """Write an OCI archive that container runtimes and agents can import; `name` is the image's name there.

    `architecture`: of the image, by default that of this host.
    """
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [
            {
                "mediaType": MANIFEST,
                "digest": digest_of(made.manifest),
                "size": len(made.manifest),
                "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name},
                "platform": {"os": "linux", "architecture": architecture or processor()},
            }
        ],
    }
    files = [Entry("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'), Entry("index.json", as_json(index))]
    blobs = {**made.blobs, digest_of(made.manifest): made.manifest}
    named = (Entry(f"blobs/sha256/{digest.removeprefix('sha256:')}", content) for digest, content in blobs.items())
    write_tar([*files, *named], to)
