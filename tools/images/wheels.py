"""Wheels: pinned by the hashes of a requirements file, unpacked as an installer would."""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

from tools.images.errors import BuildError
from tools.images.tree import File, Node

_PINNED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==(\S+)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_SCRIPT = re.compile(r"[^/]+\.data/scripts/")


@dataclass(frozen=True, slots=True)
class Requirement:
    name: str
    version: str
    hashes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Wheel:
    file_name: str
    content: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def metadata(self) -> Message:
        with zipfile.ZipFile(io.BytesIO(self.content)) as archive:
            (name,) = (name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
            return HeaderParser().parsestr(archive.read(name).decode())

    def nodes(self) -> Iterator[tuple[str, Node]]:
        """Paths below site-packages, and files."""
        with zipfile.ZipFile(io.BytesIO(self.content)) as archive:
            for entry in archive.infolist():
                if entry.is_dir() or _SCRIPT.match(entry.filename):
                    continue  # Images have no shell, and run no program of a library.
                if re.match(r"[^/]+\.data/", entry.filename):
                    raise BuildError(f"{self.file_name}: has files outside of site-packages, which is not supported")
                yield entry.filename, File(archive.read(entry))


def requirements(text: str) -> list[Requirement]:
    """The pinned distributions of a requirements file with hashes."""
    found = []
    matches = list(_PINNED.finditer(text))
    for match, following in zip(matches, [*matches[1:], None], strict=True):
        block = text[match.start() : following.start() if following else len(text)]
        hashes = frozenset(_HASH.findall(block))
        if not hashes:
            raise BuildError(f"{match[1]}=={match[2]}: the requirements file has no hash of it")
        found.append(Requirement(match[1], match[2], hashes))
    return found


def available(wanted: Iterable[Requirement], directory: Path) -> Mapping[str, Wheel]:
    """The wheels in a directory that have a pinned hash, by name of the distribution. Others do not count."""
    stored = [Wheel(file.name, file.read_bytes()) for file in sorted(directory.glob("*.whl"))]
    found: dict[str, Wheel] = {}
    for requirement in wanted:
        for wheel in stored:
            if wheel.sha256 in requirement.hashes:
                found.setdefault(requirement.name, wheel)
    return found
