"""Find images in local archives: `docker save` tarballs and OCI layouts, with any compression."""

import os
import re
import tarfile
from typing import IO, Any, Dict, List, NamedTuple, Optional

from herder.agent.images import blobs, compression, reference
from herder.agent.images.blobs import LARGEST_ARCHIVE, LARGEST_IMAGE, LARGEST_MANIFEST, LayerFile
from herder.agent.images.reference import ImageError, Reference

_EXTENSIONS = (".tar", ".tar.lz4", ".tar.bz2", ".tbz", ".tar.gz", ".tgz", ".tar.zst", ".tzst")
_DOCKER, _OCI = "manifest.json", "index.json"
_NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
_HASH = re.compile(r"(?:blobs/sha256/)?([0-9a-f]{64})(?:\.json)?$")


class Layer(NamedTuple):
    member: str
    digest: str  # digest of the stored file; empty if unknown
    content_digest: str  # digest of the uncompressed content; empty if unknown


class Found(NamedTuple):
    """An image in an archive."""

    digest: str  # digest of the manifest, or of the configuration if there is no manifest
    layers: List[Layer]
    archive: "_Archive"

    def fetch(self, scratch: str) -> List[LayerFile]:
        files, left = [], LARGEST_IMAGE
        for index, layer in enumerate(self.layers):
            path, name = os.path.join(scratch, f"layer-{index}"), f"{self.archive.path}: {layer.member}"
            left = self.archive.copy(layer, path, left)
            files.append(LayerFile(path, name, layer.content_digest))
        self.archive.close()
        return files


def listed(directory: str) -> List[str]:
    """List the archives of a directory, by name."""
    found = []
    for folder, _, names in os.walk(directory):
        for name in names:
            if not name.startswith(".") and name.lower().endswith(_EXTENSIONS):
                found.append(os.path.join(folder, name))
    return sorted(found)


def find(path: str, image: Reference, architecture: str, system: str, scratch: str) -> Optional[Found]:
    """Find an image; None if it is not in this archive. A compressed archive is decompressed once, into `scratch`."""
    archive = _Archive(path, scratch)
    found = None
    try:
        if archive.has(_OCI):
            found = _in_layout(archive, image, architecture, system)
        if found is None and archive.has(_DOCKER) and not image.digest:
            found = _saved_by_docker(archive, image)
    finally:
        if found is None:
            archive.close()
    return found


# --- lookup ---------------------------------------------------------------------------------------------------------


def _saved_by_docker(archive: "_Archive", image: Reference) -> Optional[Found]:
    table = archive.json(_DOCKER)
    for entry in _mappings(table):
        if any(_is(str(tag), image) for tag in entry.get("RepoTags") or []):
            members = [str(each) for each in entry.get("Layers") or []]
            config = str(entry.get("Config") or "")
            digest, contents = _configuration(archive, config, len(members))
            return Found(digest, [Layer(*each) for each in zip(members, [""] * len(members), contents)], archive)
    return None


def _configuration(archive: "_Archive", member: str, count: int) -> Any:
    """Return the configuration's digest and the content digests of all layers."""
    content = archive.small(member)
    match = _HASH.match(member)
    if match:
        blobs.check(content, "sha256:" + match.group(1), f"{archive.path}: {member}")
    config = blobs.parsed(content, f"{archive.path}: {member}")
    root = config.get("rootfs") if isinstance(config, dict) else None
    digests = root.get("diff_ids") if isinstance(root, dict) else None
    digests = digests if isinstance(digests, list) else []
    if len(digests) != count:
        raise ImageError(f"{archive.path}: {member} lists {len(digests)} layers, {_DOCKER} lists {count}")
    return blobs.digest_of(content), [str(each) for each in digests]


def _in_layout(archive: "_Archive", image: Reference, architecture: str, system: str) -> Optional[Found]:
    table = archive.json(_OCI)
    for each in _mappings(table.get("manifests") if isinstance(table, dict) else None):
        entry = blobs.descriptor(each, archive.path)
        if not _names(each, entry.digest, image):
            continue
        digest = entry.digest
        manifest = _manifest(archive, digest)
        for _ in range(blobs.DEEPEST_INDEX):
            if not blobs.is_index(manifest):
                break
            digest = blobs.choose(manifest, architecture, system, str(image)).digest
            manifest = _manifest(archive, digest)
        found = blobs.layers(manifest, str(image))
        return Found(digest, [Layer(_blob_name(layer.digest), layer.digest, "") for layer in found], archive)
    return None


def _mappings(table: Any) -> List[Dict[str, Any]]:
    return [each for each in table if isinstance(each, dict)] if isinstance(table, list) else []


def _names(entry: Dict[str, Any], digest: str, image: Reference) -> bool:
    if image.digest:
        return digest == image.digest
    annotations = entry.get("annotations")
    annotations = annotations if isinstance(annotations, dict) else {}
    return any(_is(str(annotations[name]), image) for name in _NAMES if name in annotations)


def _is(name: str, image: Reference) -> bool:
    """Match a name. Layouts of one image often have only a tag, which does not identify the image."""
    try:
        found = reference.parse(name)
    except ImageError:
        return False
    return (found.registry, found.repository, found.tag) == (image.registry, image.repository, image.tag)


def _manifest(archive: "_Archive", digest: str) -> Dict[str, Any]:
    member = _blob_name(digest)
    blobs.check(archive.small(member), digest, f"{archive.path}: {member}")
    value = archive.json(member)
    if not isinstance(value, dict):
        raise ImageError(f"{archive.path}: {member} is no manifest")
    return value


def _blob_name(digest: str) -> str:
    return "blobs/sha256/" + digest.partition(":")[2]


# --- reading archives -----------------------------------------------------------------------------------------------


class _Archive:
    """Random access to an archive; a compressed one is decompressed first."""

    def __init__(self, path: str, scratch: str) -> None:
        self.path = path
        self._copy = ""
        if compression.is_compressed(path):
            self._copy = os.path.join(scratch, "archive")
            with compression.opened(path) as stream, open(self._copy, "wb") as target:
                _copy(stream, target, path)
        self._tar = tarfile.open(self._copy or path, "r:")  # noqa: SIM115 - closed by the owner
        self._members = {_normal(member.name): member for member in self._tar.getmembers() if member.isreg()}

    def has(self, name: str) -> bool:
        return name in self._members

    def json(self, name: str) -> Any:
        return blobs.parsed(self.small(name), f"{self.path}: {name}")

    def small(self, name: str) -> bytes:
        if self._member(name).size > LARGEST_MANIFEST:
            raise ImageError(f"{self.path}: {name} is too large for what it should be")
        content = self._tar.extractfile(self._member(name))
        assert content is not None
        return content.read()

    def copy(self, layer: Layer, target: str, left: int) -> int:
        content = self._tar.extractfile(self._member(layer.member))
        assert content is not None
        with open(target, "wb") as stream:
            wanted = blobs.Descriptor("", layer.digest, -1, {})
            return blobs.copy(content.read, stream, wanted, f"{self.path}: {layer.member}", left)

    def close(self) -> None:
        self._tar.close()
        if self._copy:
            os.unlink(self._copy)

    def _member(self, name: str) -> tarfile.TarInfo:
        if name not in self._members:
            raise ImageError(f"{self.path}: {name} is named in its tables and not there")
        return self._members[name]


def _copy(stream: IO[bytes], target: IO[bytes], path: str) -> None:
    left = LARGEST_ARCHIVE
    while True:
        chunk = stream.read(1 << 20)
        if not chunk:
            return
        left -= len(chunk)
        if left < 0:
            raise ImageError(f"{path}: larger than {LARGEST_ARCHIVE >> 30} GiB when it is decompressed")
        target.write(chunk)


def _normal(name: str) -> str:
    return name[2:] if name.startswith("./") else name
