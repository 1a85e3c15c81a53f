"""Copy an image from a registry, to write it to an archive without a container engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from herder.clusteragent.registry import INDEXES, Reference, RegistryError, Repository
from herder.oci import CONFIG, MANIFEST, PACKED_LAYER, PLAIN_LAYER, Content, Image, as_json, processor

_DOCKER = "application/vnd.docker."
_OCI_LAYERS = {"tar.gzip": PACKED_LAYER, "tar": PLAIN_LAYER}  # by the end of Docker's media type
_MOST_LAYERS = 256


@dataclass(frozen=True, slots=True)
class Descriptor:
    media_type: str
    digest: str
    size: int

    @staticmethod
    def parse(found: Any, image: str) -> Descriptor:
        try:
            return Descriptor(str(found["mediaType"]), str(found["digest"]), int(found["size"]))
        except (KeyError, TypeError, ValueError):
            raise RegistryError(f"{image}: its manifest is not one of an image") from None

    def as_oci(self) -> dict[str, Any]:
        return {"mediaType": oci_type(self.media_type), "digest": self.digest, "size": self.size}


async def download(source: Repository, directory: Path, architecture: str = "") -> Image:
    """Download the image for Linux on this architecture, by default that of this host. Layers become files."""
    reference = source.reference
    content = await manifest_for(source, architecture or processor())
    manifest = json.loads(content)
    image = f"{reference.host}/{reference.name}:{reference.version}"
    config = Descriptor.parse(manifest.get("config"), image)
    listed = manifest.get("layers")
    if not isinstance(listed, list) or len(listed) > _MOST_LAYERS:
        raise RegistryError(f"{image}: its manifest is not one of an image")
    layers = [Descriptor.parse(each, image) for each in listed]
    blobs: dict[str, Content] = {config.digest: await source.blob(config.digest)}
    for number, layer in enumerate(layers):
        file = directory / f"layer-{number}"
        await source.download(layer.digest, layer.size, file)
        blobs[layer.digest] = file
    return Image(_as_oci(content, config, layers), blobs)


async def manifest_for(source: Repository, architecture: str) -> bytes:
    """The manifest of the image for Linux on this architecture."""
    content = await source.manifest_content(source.reference.version)
    found = json.loads(content)
    if found.get("mediaType") not in INDEXES and "manifests" not in found:
        return content
    listed = [each for each in found.get("manifests") or () if isinstance(each, dict)]
    for each in listed:
        platform = each.get("platform") or {}
        if (platform.get("os"), platform.get("architecture")) == ("linux", architecture):
            return await source.manifest_content(str(each.get("digest")))
    known = sorted({str((each.get("platform") or {}).get("architecture")) for each in listed} - {"None", "unknown"})
    raise RegistryError(
        f"{source.reference.name}: no image for linux/{architecture}; it exists for: {', '.join(known) or 'none'}"
    )


def _as_oci(content: bytes, config: Descriptor, layers: Sequence[Descriptor]) -> bytes:
    """Herder's registry serves OCI manifests only; those of Docker are converted, and get another digest."""
    if not any(each.media_type.startswith(_DOCKER) for each in (config, *layers)):
        return content
    described = {"mediaType": CONFIG, "digest": config.digest, "size": config.size}
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": described}
    return as_json({**manifest, "layers": [layer.as_oci() for layer in layers]})


def oci_type(media_type: str) -> str:
    if not media_type.startswith(_DOCKER):
        return media_type
    end = media_type.rpartition(".diff.")[2]
    if end not in _OCI_LAYERS:
        raise RegistryError(f"{media_type}: layers of this type cannot be archived")
    return _OCI_LAYERS[end]


def check_tagged(text: str) -> Reference:
    """An archive names its image by tag."""
    reference = Reference.parse(text)
    if reference.version.startswith("sha256:"):
        raise RegistryError(f"{text!r}: must be REGISTRY/NAME:TAG; archives name images by tag")
    if not any(mark in reference.host for mark in (".", ":", "localhost")):
        raise RegistryError(f"{text!r}: names no registry; write for example docker.io/{text}")
    return reference
