"""Images in archives on this node: what `docker save` writes, and OCI layouts, in a tar of any compression."""

import hashlib
import json
import os
import re
import tarfile
from typing import IO, Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from herder.agent.images import blobs, compression, reference
from herder.agent.images.blobs import LARGEST_MANIFEST
from herder.agent.images.reference import ImageError, Reference

_EXTENSIONS = (".tar", ".tar.lz4", ".tar.bz2", ".tbz", ".tar.gz", ".tgz", ".tar.zst", ".tzst")
_DOCKER, _OCI = "manifest.json", "index.json"
_NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
_HASH = re.compile(r"(?:blobs/sha256/)?([0-9a-f]{64})(?:\.json)?$")


class Layer(NamedTuple):
    member: str
    digest: str  # of the file as it is there; empty: not told
    content_digest: str  # of what is in it, without compression; empty: not told


def find(directory: str, image: Reference, architecture: str, system: str, scratch: str) -> Optional[List[str]]:
    """Files with the image's layers, in `scratch`; None where no archive has the image. Names decide the order."""
    problems: List[str] = []
    for path in _archives(directory):
        try:
            layers = _layers(path, image, architecture, system)
            if layers is not None:
                return _extract(path, layers, scratch)
        except (OSError, ValueError, tarfile.TarError, EOFError) as error:
            problems.append(f"{path}: {error}")
    if problems:
        raise ImageError(f"{image} may be in an archive that cannot be read: {'; '.join(problems)}")
    return None


def _archives(directory: str) -> List[str]:
    found = []
    for folder, _, names in os.walk(directory):
        for name in names:
            if not name.startswith(".") and name.lower().endswith(_EXTENSIONS):
                found.append(os.path.join(folder, name))
    return sorted(found)


# --- looking for the image ------------------------------------------------------------------------------------------


def _layers(path: str, image: Reference, architecture: str, system: str) -> Optional[List[Layer]]:
    """What to take out of this archive; None where the image is not in it."""
    tables = _small_members(path, {_DOCKER, _OCI})
    if _OCI in tables:
        found = _oci_layers(path, json.loads(tables[_OCI].decode("utf-8")), image, architecture, system)
        if found is not None:
            return found
    if _DOCKER in tables and not image.digest:
        return _docker_layers(path, json.loads(tables[_DOCKER].decode("utf-8")), image)
    return None


def _docker_layers(path: str, manifest: Any, image: Reference) -> Optional[List[Layer]]:
    for entry in manifest if isinstance(manifest, list) else []:
        if any(_is(str(tag), image) for tag in entry.get("RepoTags") or []):
            members = [str(each) for each in entry.get("Layers") or []]
            contents = _content_digests(path, str(entry.get("Config") or ""), len(members))
            return [Layer(member, "", digest) for member, digest in zip(members, contents)]
    return None


def _content_digests(path: str, member: str, count: int) -> List[str]:
    content = _small_members(path, {member}).get(member)
    if content is None:
        raise ImageError(f"{path}: {member} is named in {_DOCKER} and not there")
    told = _HASH.match(member)
    if told:
        blobs.check(content, "sha256:" + told.group(1), f"{path}: {member}")
    digests = (json.loads(content.decode("utf-8")).get("rootfs") or {}).get("diff_ids") or []
    if len(digests) != count:
        raise ImageError(f"{path}: {member} tells of {len(digests)} layers, {_DOCKER} of {count}")
    return [str(each) for each in digests]


def _oci_layers(
    path: str, index: Dict[str, Any], image: Reference, architecture: str, system: str
) -> Optional[List[Layer]]:
    for each in index.get("manifests") or []:
        entry = blobs.descriptor(each, path)
        if not _names(each, entry.digest, image):
            continue
        manifest = _blob(path, entry.digest)
        while blobs.is_index(manifest):
            manifest = _blob(path, blobs.choose(manifest, architecture, system, str(image)).digest)
        return [Layer(_blob_name(layer.digest), layer.digest, "") for layer in blobs.layers(manifest, str(image))]
    return None


def _names(entry: Dict[str, Any], digest: str, image: Reference) -> bool:
    if image.digest:
        return digest == image.digest
    annotations = entry.get("annotations") or {}
    return any(_is(str(annotations[name]), image) for name in _NAMES if name in annotations)


def _is(name: str, image: Reference) -> bool:
    """Layouts of one image often tell its tag alone, which says nothing of whose it is."""
    try:
        found = reference.parse(name)
    except ImageError:
        return False
    return (found.registry, found.repository, found.tag) == (image.registry, image.repository, image.tag)


def _blob(path: str, digest: str) -> Dict[str, Any]:
    member = _blob_name(digest)
    content = _small_members(path, {member}).get(member)
    if content is None:
        raise ImageError(f"{path}: {member} is not there")
    blobs.check(content, digest, f"{path}: {member}")
    value = json.loads(content.decode("utf-8"))
    if not isinstance(value, dict):
        raise ImageError(f"{path}: {member} is no manifest")
    return value


def _blob_name(digest: str) -> str:
    return "blobs/sha256/" + digest.partition(":")[2]


# --- reading archives -----------------------------------------------------------------------------------------------


def _members(path: str) -> Iterator[Tuple[str, IO[bytes], tarfile.TarInfo]]:
    with compression.opened(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            if member.isreg():
                content = archive.extractfile(member)
                assert content is not None
                yield member.name[2:] if member.name.startswith("./") else member.name, content, member


def _small_members(path: str, wanted: Set[str]) -> Dict[str, bytes]:
    """Those of them that are there; reading ends with the last one."""
    found: Dict[str, bytes] = {}
    for name, content, member in _members(path):
        if name in wanted:
            if member.size > LARGEST_MANIFEST:
                raise ImageError(f"{path}: {name} is too large for what it should be")
            found[name] = content.read()
            if len(found) == len(wanted):
                break
    return found


def _extract(path: str, layers: List[Layer], scratch: str) -> List[str]:
    targets = {layer.member: os.path.join(scratch, f"layer-{index}") for index, layer in enumerate(layers)}
    digests = {layer.member: layer.digest for layer in layers}
    found = set()
    for name, content, _ in _members(path):
        if name in targets:
            with open(targets[name], "wb") as stream:
                wanted = blobs.Descriptor("", digests[name], -1, {})
                blobs.copy(content.read, stream, wanted, f"{path}: {name}")
            found.add(name)
    for layer in layers:
        if layer.member not in found:
            raise ImageError(f"{path}: the layer {layer.member} is not there")
        if layer.content_digest:
            _check_content(targets[layer.member], layer.content_digest, f"{path}: {layer.member}")
    return [targets[layer.member] for layer in layers]


def _check_content(path: str, digest: str, what: str) -> None:
    found = hashlib.sha256()
    with compression.opened(path) as stream:
        while True:
            chunk = stream.read(1 << 16)
            if not chunk:
                break
            found.update(chunk)
    if "sha256:" + found.hexdigest() != digest:
        raise ImageError(f"{what}: the digest of its content is sha256:{found.hexdigest()}, and not {digest}")
