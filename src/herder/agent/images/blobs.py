"""Copy blobs into files, limiting their size and verifying their digests."""

import hashlib
import json
import re
import tarfile
import zlib
from typing import IO, Any, Callable, Dict, List, NamedTuple, Optional

from herder.agent.images.reference import ImageError

LARGEST_MANIFEST = 4 << 20
LARGEST_IMAGE = 8 << 30  # all layers of an image, compressed
LARGEST_ARCHIVE = 64 << 30  # decompressed: distributions publish all their images in one archive
_MOST_LAYERS = 256
DEEPEST_INDEX = 4  # depth of nested indexes
UNREADABLE = (OSError, EOFError, ValueError, OverflowError, RecursionError, zlib.error, tarfile.TarError)
"""Exceptions raised for damaged or hostile archives, layers and manifests."""
_CHUNK = 1 << 16
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}$")


class Descriptor(NamedTuple):
    media_type: str
    digest: str
    size: int  # -1: unknown
    platform: Dict[str, Any]


class LayerFile(NamedTuple):
    """A downloaded layer."""

    path: str
    name: str  # for messages
    content_digest: str  # digest of the uncompressed content; empty: the downloaded file is verified


class Checked:
    """A stream whose digest is verified at its end."""

    def __init__(self, stream: IO[bytes], digest: str, what: str) -> None:
        self._stream = stream
        self._wanted = digest
        self._what = what
        self._digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        content = self._stream.read(size)
        if self._wanted:
            self._digest.update(content)
        return content

    def finish(self) -> None:
        while self.read(_CHUNK):
            pass
        found = "sha256:" + self._digest.hexdigest()
        if self._wanted and found != self._wanted:
            raise ImageError(f"{self._what}: the digest of its content is {found}, and not {self._wanted}")


def descriptor(value: Any, what: str) -> Descriptor:
    digest = value.get("digest") if isinstance(value, dict) else None
    if not isinstance(digest, str) or not _DIGEST.match(digest):
        raise ImageError(f"{what}: {digest!r} is no sha256 digest")
    size = value.get("size")
    platform = value.get("platform")
    return Descriptor(
        str(value.get("mediaType") or ""),
        digest,
        size if isinstance(size, int) and not isinstance(size, bool) else -1,
        platform if isinstance(platform, dict) else {},
    )


def digest_of(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def check(content: bytes, digest: str, what: str) -> None:
    found = digest_of(content)
    if digest and found != digest:
        raise ImageError(f"{what}: its digest is {found}, and {digest} was asked for")


def copy(read: Callable[[int], bytes], target: IO[bytes], wanted: Descriptor, what: str, left: int) -> int:
    """Copy at most the size in the manifest, and at most `left` bytes; return what is left then.

    An empty digest is verified elsewhere.
    """
    if wanted.size > left:
        raise ImageError(f"{what}: its image is larger than {LARGEST_IMAGE >> 20} MiB")
    digest, size = hashlib.sha256(), 0
    while True:
        chunk = read(_CHUNK)
        if not chunk:
            break
        size += len(chunk)
        if 0 <= wanted.size < size:
            raise ImageError(f"{what}: longer than the {wanted.size} bytes that its manifest states")
        if size > left:
            raise ImageError(f"{what}: its image is larger than {LARGEST_IMAGE >> 20} MiB")
        digest.update(chunk)
        target.write(chunk)
    if wanted.digest and "sha256:" + digest.hexdigest() != wanted.digest:
        raise ImageError(f"{what}: its digest is sha256:{digest.hexdigest()}, and {wanted.digest} was asked for")
    target.flush()
    return left - size


def parsed(content: bytes, what: str) -> Any:
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ImageError(f"{what}: not JSON") from error


# --- manifests ------------------------------------------------------------------------------------------------------


def is_index(manifest: Dict[str, Any]) -> bool:
    return isinstance(manifest.get("manifests"), list)


def choose(manifest: Dict[str, Any], architecture: str, system: str, what: str) -> Descriptor:
    """Return the manifest of an index for this platform."""
    offered: List[str] = []
    for each in manifest["manifests"]:
        entry = descriptor(each, what)
        name = f"{entry.platform.get('os')}/{entry.platform.get('architecture')}"
        if name == f"{system}/{architecture}":
            return entry
        offered.append(name)
    raise ImageError(f"{what}: nothing for {system}/{architecture}, only {', '.join(offered) or 'nothing at all'}")


def layers(manifest: Dict[str, Any], what: str) -> List[Descriptor]:
    found = manifest.get("layers")
    if not isinstance(found, list):
        raise ImageError(f"{what}: the manifest has no layers (its type is {manifest.get('mediaType')!r})")
    if len(found) > _MOST_LAYERS:
        raise ImageError(f"{what}: the manifest has {len(found)} layers, and {_MOST_LAYERS} are allowed")
    return [descriptor(each, what) for each in found]


def platform(machine: Optional[str] = None) -> str:
    """Return the architecture of this machine in image terms."""
    import platform as library

    name = (machine or library.machine()).lower()
    return {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}.get(name, name)
