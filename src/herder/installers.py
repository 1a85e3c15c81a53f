"""Common parts of the installer images of all distributions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from herder.oci import Entry, Image, Layer, image, write_tar


class InstallerError(Exception):
    """An input is missing or invalid."""


def tag(version: str) -> str:
    """Tags must not contain a plus."""
    return version.replace("+", "-")


def one_layer(entries: Iterable[Entry], scratch: Path) -> Image:
    """Build an image with one layer; its content is a file in `scratch`, which must outlive it."""
    plain = scratch / "layer.tar"
    with plain.open("wb") as file:
        write_tar(entries, file)
    layer = Layer.packed_file(plain, scratch / "layer.tar.gz")
    plain.unlink()
    return image([layer])
