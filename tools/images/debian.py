"""Debian packages: pinned by hash, read without dpkg, never installed.

Maintainer scripts do not run. What they would do and the images need, `tools.images.base` does.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

from tools.images.errors import BuildError
from tools.images.tree import Directory, File, Link, Node

PINS = Path(__file__).with_name("debian.txt")
_MAGIC, _HEADER_SIZE = b"!<arch>\n", 60
_EXECUTABLE = 0o111


@dataclass(frozen=True, slots=True)
class Pin:
    name: str
    version: str
    size: int
    sha256: str
    path: str  # below the root of a mirror

    @property
    def file_name(self) -> str:
        return self.path.rpartition("/")[2]

    def check(self, content: bytes, file: Path) -> None:
        if len(content) != self.size or hashlib.sha256(content).hexdigest() != self.sha256:
            raise BuildError(f"{file}: is not the pinned {self.name} {self.version}, by its SHA-256; delete the file")


def pins(file: Path = PINS) -> list[Pin]:
    found = []
    for line in file.read_text().splitlines():
        if line and not line.startswith("#"):
            name, version, size, sha256, path = line.split()
            found.append(Pin(name, version, int(size), sha256, path))
    return found


@dataclass(frozen=True, slots=True)
class Package:
    """A package file whose hash was verified."""

    pin: Pin
    control: str
    md5sums: str
    data: bytes

    @property
    def fields(self) -> Message:
        return HeaderParser().parsestr(self.control)

    def nodes(self) -> Iterator[tuple[str, Node]]:
        """Paths and files. Owners and times are dropped, because all files of the images belong to root."""
        with tarfile.open(fileobj=io.BytesIO(self.data)) as archive:
            for member in archive:
                if member.name.strip("./"):
                    yield member.name, self._node(archive, member)

    def _node(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> Node:
        if member.isdir():
            return Directory(member.mode & 0o1777)
        if member.issym():
            return Link(member.linkname)
        content = archive.extractfile(member) if member.isreg() or member.islnk() else None
        if content is None:
            raise BuildError(f"{self.pin.name}: {member.name} is neither a file nor a link")
        # Setuid programs have no use in images whose processes must not gain privileges.
        return File(content.read(), 0o755 if member.mode & _EXECUTABLE else 0o644)


def read(pin: Pin, directory: Path) -> Package:
    """Read a downloaded package; raises `BuildError` if it is not the pinned one."""
    file = directory / pin.file_name
    content = file.read_bytes()
    pin.check(content, file)
    members = dict(_members(content, file))
    control = next((body for name, body in members.items() if name.startswith("control.tar")), None)
    data = next((body for name, body in members.items() if name.startswith("data.tar")), None)
    if control is None or data is None:
        raise BuildError(f"{file}: is not a Debian package")
    return Package(pin, _text(control, "control"), _text(control, "md5sums"), data)


def _text(control: bytes, name: str) -> str:
    with tarfile.open(fileobj=io.BytesIO(control)) as archive:
        for member in archive:
            if member.name.removeprefix("./") == name:
                content = archive.extractfile(member)
                return content.read().decode() if content else ""
    return ""


def _members(content: bytes, file: Path) -> Iterator[tuple[str, bytes]]:
    """Members of an `ar` archive, which every Debian package is."""
    if not content.startswith(_MAGIC):
        raise BuildError(f"{file}: is not a Debian package")
    position = len(_MAGIC)
    while position < len(content):
        header = content[position : position + _HEADER_SIZE]
        size, position = int(header[48:58]), position + _HEADER_SIZE
        yield header[:16].decode().strip().rstrip("/"), content[position : position + size]
        position += size + size % 2  # members begin at even positions
