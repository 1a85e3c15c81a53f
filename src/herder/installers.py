"""What the installer images of all distributions have in common: one layer of files, and how they are tagged."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from herder.oci import Entry, Image, Layer, image, write_tar


class InstallerError(Exception):
    """What is missing, or wrong with what was given."""


def tag(version: str) -> str:
    """Tags have no plus."""
    return version.replace("+", "-")


def one_layer(entries: Iterable[Entry], scratch: Path) -> Image:
    """Its content is in a file of `scratch`, and lives as long as that."""
    plain = scratch / "layer.tar"
    with plain.open("wb") as file:
        write_tar(entries, file)
    layer = Layer.packed_file(plain, scratch / "layer.tar.gz")
    plain.unlink()
    return image([layer])
