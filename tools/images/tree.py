"""The files of a layer, and the archive that they give: equal trees give equal bytes."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tools.images.errors import BuildError

# Debian's packages contain both spellings of these directories, and its base system has links from one to the other.
_MERGED = frozenset({"bin", "lib", "lib64", "sbin"})
_LINK_MODE = 0o777


@dataclass(frozen=True, slots=True)
class File:
    content: bytes = field(repr=False)
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class Link:
    target: str


@dataclass(frozen=True, slots=True)
class Directory:
    mode: int = 0o755


Node = File | Link | Directory


class Tree:
    """Nodes by path; paths are relative to the root of the image. Everything belongs to root."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}

    def __iter__(self) -> Iterator[tuple[str, Node]]:
        """Parents come before their children."""
        return iter(sorted(self._nodes.items()))

    def __contains__(self, path: str) -> bool:
        return normalized(path) in self._nodes

    def file(self, path: str) -> File:
        node = self._nodes.get(normalized(path))
        if not isinstance(node, File):
            raise BuildError(f"/{path}: is not a file of the packages; the pinned packages do not belong together")
        return node

    def add(self, path: str, node: Node) -> None:
        path = normalized(path)
        for parent in PurePosixPath(path).parents[:-1]:
            if not isinstance(self._nodes.setdefault(str(parent), Directory()), Directory):
                raise BuildError(f"/{path}: /{parent} is not a directory")
        known = self._nodes.setdefault(path, node)
        if known != node and not (isinstance(known, Directory) and isinstance(node, Directory)):
            raise BuildError(f"/{path}: two packages contain this file, with different contents")

    def add_merged_directories(self) -> None:
        for name in _MERGED:
            self.add(f"usr/{name}", Directory())
            self._nodes[name] = Link(f"usr/{name}")

    def update(self, other: Tree) -> None:
        for path, node in other:
            self.add(path, node)

    def write_to(self, root: Path) -> None:
        """Write the files below an existing directory, for programs that read them there."""
        for path, node in self:
            target = root / path
            match node:
                case Directory():
                    target.mkdir(exist_ok=True)
                case Link():
                    target.symlink_to(node.target)
                case File():
                    target.write_bytes(node.content)
                    target.chmod(node.mode)

    def tar(self) -> bytes:
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path, node in self:
                header = tarfile.TarInfo(path)  # root's, from 1970: times are no part of what was built
                match node:
                    case Directory():
                        header.type, header.mode = tarfile.DIRTYPE, node.mode
                    case Link():
                        header.type, header.linkname, header.mode = tarfile.SYMTYPE, node.target, _LINK_MODE
                    case File():
                        header.size, header.mode = len(node.content), node.mode
                archive.addfile(header, io.BytesIO(node.content) if isinstance(node, File) else None)
        return content.getvalue()


def normalized(path: str) -> str:
    """The path in a file system where /bin and the like are links to /usr/bin."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        raise BuildError(f"{path!r}: is not a path of a file in an image")
    return "/".join((["usr"] if parts[0] in _MERGED else []) + parts)
