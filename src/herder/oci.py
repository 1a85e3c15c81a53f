"""Container images as the standard writes them, made from files: layers, a config, a manifest, an archive of all."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MANIFEST, INDEX = "application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
PLAIN_LAYER, PACKED_LAYER = "application/vnd.oci.image.layer.v1.tar", "application/vnd.oci.image.layer.v1.tar+gzip"
PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64"}
QUICKLY = 1  # how hard a layer is compressed: more takes several times as long, and programs hardly get smaller


def processor() -> str:
    return PROCESSORS.get(platform.machine(), platform.machine())


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def as_json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in a layer: its content, or where it is read from."""

    path: str
    content: bytes | Path
    mode: int = 0o644


def tar(entries: Iterable[Entry]) -> bytes:
    """The same bytes for the same entries, whenever it is made."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            body = entry.content.read_bytes() if isinstance(entry.content, Path) else entry.content
            header = tarfile.TarInfo(entry.path)
            header.size, header.mode = len(body), entry.mode
            archive.addfile(header, io.BytesIO(body))
    return content.getvalue()


@dataclass(frozen=True, slots=True)
class Layer:
    content: bytes = field(repr=False)
    diff_id: str  # the digest of what it unpacks to
    media_type: str

    @staticmethod
    def packed(content: bytes) -> Layer:
        return Layer(gzip.compress(content, QUICKLY, mtime=0), digest_of(content), PACKED_LAYER)

    def described(self) -> dict[str, Any]:
        return {"mediaType": self.media_type, "digest": digest_of(self.content), "size": len(self.content)}


@dataclass(frozen=True, slots=True)
class Image:
    manifest: bytes
    blobs: Mapping[str, bytes] = field(repr=False)  # by digest, the config among them


def image(layers: Sequence[Layer], running: Mapping[str, Any] | None = None) -> Image:
    """`running` is what a container of it runs: Entrypoint, Env and the like."""
    roots = {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]}
    config = as_json({"architecture": processor(), "os": "linux", "config": dict(running or {}), "rootfs": roots})
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, "digest": digest_of(config), "size": len(config)},
        "layers": [layer.described() for layer in layers],
    }
    blobs = {digest_of(layer.content): layer.content for layer in layers}
    return Image(as_json(manifest), {**blobs, digest_of(config): config})


def archive(made: Image, name: str) -> bytes:
    """A tar that runtimes import and agents install from; `name` is what the image is called there."""
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [
            {
                "mediaType": MANIFEST,
                "digest": digest_of(made.manifest),
                "size": len(made.manifest),
                "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name},
                "platform": {"os": "linux", "architecture": processor()},
            }
        ],
    }
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": as_json(index)}
    blobs = {**made.blobs, digest_of(made.manifest): made.manifest}
    named = {f"blobs/sha256/{digest.removeprefix('sha256:')}": content for digest, content in blobs.items()}
    return tar(Entry(path, content) for path, content in {**files, **named}.items())
