"""Unpack layers into a directory, each on top of the previous ones, never outside of it.

Images may be hostile: see `trees` for names and links, and `Budget` for sizes.
"""

import shutil
import stat
import tarfile
from typing import IO, List, Optional, Set, cast

from herder.agent.images import trees
from herder.agent.images.reference import ImageError
from herder.agent.images.trees import Directory

MOST_BYTES = 8 << 30
MOST_ENTRIES = 200_000
_WHITEOUT, _OPAQUE, _AUFS = ".wh.", ".wh..wh..opq", ".wh..wh."
_MODE = 0o755
_MOST_LINKS = 40
_DEEPEST = 100
_LARGEST_HEADER = 1 << 20  # per entry: name, link and attributes
_CHUNK = 1 << 16


class Budget:
    """Limits for all layers of one image."""

    def __init__(self, size: int = MOST_BYTES, entries: int = MOST_ENTRIES) -> None:
        self._size, self._entries = size, entries
        self._bytes_left, self._entries_left = size, entries

    def charge(self, member: tarfile.TarInfo) -> None:
        """Charge the size that the entry claims before writing: a sparse file takes no bytes in the layer."""
        self._entries_left -= 1
        self._bytes_left -= max(member.size, 0)
        if self._entries_left < 0:
            raise ImageError(f"the image has more than {self._entries} files")
        if self._bytes_left < 0 or member.size < 0:
            raise ImageError(f"the image is larger than {self._size >> 20} MiB, at {_shown(member.name)}")


def unpack(stream: IO[bytes], root: str, only: str = "", budget: Optional[Budget] = None) -> None:
    """Unpack one layer. With `only`, just what is below that path, moved to the top."""
    metered = _Metered(stream)
    base = trees.opened(root)
    try:
        layer = _Layer(base, _parts(only))
        with tarfile.open(fileobj=cast(IO[bytes], metered), mode="r|") as archive:
            _unpack(archive, metered, layer, budget or Budget())
    finally:
        base.close()


def _unpack(archive: tarfile.TarFile, metered: "_Metered", layer: "_Layer", budget: Budget) -> None:
    while True:
        metered.allow(_LARGEST_HEADER)  # tarfile holds headers in memory, however long they are
        member = archive.next()
        if member is None:
            return
        budget.charge(member)
        metered.allow(None)
        if not layer.place(archive, member):
            _skip(archive, member)
        archive.members = []  # type: ignore[attr-defined]  # tarfile remembers every entry


def _skip(archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    """Read the contents of an entry, so that they do not count as part of the next header."""
    content = archive.extractfile(member) if member.isreg() or member.type not in tarfile.SUPPORTED_TYPES else None
    while content is not None and content.read(_CHUNK):
        pass


class _Metered:
    """A stream of which only so much may be read until the next allowance."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._left: Optional[int] = _LARGEST_HEADER  # tarfile reads the first header when it is opened

    def allow(self, size: Optional[int]) -> None:
        self._left = size

    def read(self, size: int = -1) -> bytes:
        content = self._stream.read(size)
        if self._left is not None:
            self._left -= len(content)
            if self._left < 0:
                raise ImageError(f"an image's layer has a header of more than {_LARGEST_HEADER >> 10} KiB")
        return content


class _Layer:
    """A layer being unpacked into a directory."""

    def __init__(self, base: Directory, only: List[str]) -> None:
        self._base = base
        self._only = only
        self._placed: Set[str] = set()  # paths of this layer: whiteouts apply only to the layers below

    def place(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> bool:
        """Unpack an entry; return whether its contents were read."""
        path = self._within(_parts(member.name))
        if not path:
            return False
        walk = _Walk(self._base, _shown(member.name))
        try:
            walk.enter(path[:-1], create=True)
            return self._place(archive, member, walk, path[-1])
        finally:
            walk.close()

    def _within(self, path: List[str]) -> List[str]:
        """Return the path below `only`; empty if it is outside."""
        return path[len(self._only) :] if path[: len(self._only)] == self._only else []

    def _place(self, archive: tarfile.TarFile, member: tarfile.TarInfo, walk: "_Walk", name: str) -> bool:
        parent, is_read = walk.here, False
        if name == _OPAQUE:
            self._clear(parent, walk.path)
            return False
        if name.startswith(_WHITEOUT):
            if not name.startswith(_AUFS):  # written by the old AUFS driver for itself
                trees.remove(parent, _checked(name[len(_WHITEOUT) :], f"whiteout {_shown(member.name)}"))
            return False
        _checked(name, _shown(member.name))
        if member.isdir():
            self._directory(parent, name)
        elif member.isreg():
            trees.remove(parent, name)
            _write(archive, member, parent, name)
            is_read = True
        elif member.issym():
            trees.remove(parent, name)
            parent.symlink(member.linkname, name)
        elif member.islnk():
            self._link(member, walk, name)
        else:
            return False  # no plan needs devices and the like
        self._placed.add("/".join([*walk.path, name]))
        return is_read

    def _directory(self, parent: Directory, name: str) -> None:
        found = parent.child(name)
        if found is None:
            trees.remove(parent, name)
            parent.make(name)
            found = parent.child(name)
        if found is not None:
            try:
                found.set_mode(_MODE)
            finally:
                found.close()

    def _link(self, member: tarfile.TarInfo, walk: "_Walk", name: str) -> None:
        link_name = _shown(member.linkname)
        path = self._within(_parts(member.linkname))
        source = _Walk(self._base, link_name)
        try:
            if not path or not source.enter(path[:-1], create=False):
                raise ImageError(f"an image's layer links to {link_name}, which it does not have")
            original = _checked(path[-1], link_name)
            if (source.path, original) != (walk.path, name):
                trees.remove(walk.here, name)
                walk.here.link(source.here, original, name)
        finally:
            source.close()

    def _clear(self, directory: Directory, path: List[str]) -> None:
        """Remove what lower layers put into a directory; entries of this layer stay, in whatever order they come."""
        for name in directory.names():
            inner, whole = directory.child(name), "/".join([*path, name])
            if inner is None:
                if whole not in self._placed:
                    directory.unlink(name)
                continue
            try:
                self._clear(inner, [*path, name])
                is_empty = not inner.names()
            finally:
                inner.close()
            if is_empty and whole not in self._placed:
                directory.remove_directory(name)


class _Walk:
    """Walks directories by entries of open ones; symlinks are resolved as if the root were the file system's root."""

    def __init__(self, base: Directory, link_name: str) -> None:
        self._base = base
        self._link_name = link_name
        self._open: List[Directory] = []
        self.path: List[str] = []

    @property
    def here(self) -> Directory:
        return self._open[-1] if self._open else self._base

    def enter(self, path: List[str], create: bool) -> bool:
        """Return whether the directory exists; `create` creates it."""
        left, links = list(reversed(path)), 0
        while left:
            name = left.pop()
            if name == "..":
                self._leave()
                continue
            target = self.here.link_target(_checked(name, self._link_name))
            if target is None:
                if not self._step(name, create):
                    return False
                continue
            links += 1
            if links > _MOST_LINKS:
                raise ImageError(f"an image's layer has links that lead in a circle, at {self._link_name}")
            if target.startswith("/"):
                self.close()
            left += reversed([each for each in target.split("/") if each not in ("", ".")])
        return True

    def _step(self, name: str, create: bool) -> bool:
        found = self.here.child(name)
        if found is None and create:
            trees.remove(self.here, name)
            self.here.make(name)
            found = self.here.child(name)
        if found is None:
            return False
        self._open.append(found)
        self.path.append(name)
        if len(self.path) > _DEEPEST:
            raise ImageError(f"an image's layer is nested more than {_DEEPEST} directories deep, at {self._link_name}")
        return True

    def _leave(self) -> None:
        if self._open:
            self._open.pop().close()
            self.path.pop()

    def close(self) -> None:
        """Return to the root."""
        while self._open:
            self._leave()


def _parts(name: str) -> List[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ImageError(f"an image's layer has {_shown(name)}, which leads out of it")
    if len(parts) > _DEEPEST:
        raise ImageError(f"an image's layer is nested more than {_DEEPEST} directories deep, at {_shown(name)}")
    return parts


def _checked(name: str, what: str) -> str:
    try:
        return trees.KIND.check(name)
    except trees.BadName as error:
        raise ImageError(f"an image's layer has {what}: {error}") from None


def _shown(name: str) -> str:
    return repr(name if len(name) <= 200 else name[:200] + "…")


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, parent: Directory, name: str) -> None:
    """Write a file with at most mode 0755; a file without permissions gets the default ones."""
    content = archive.extractfile(member)
    assert content is not None
    with parent.create(name, stat.S_IMODE(member.mode) & _MODE or _MODE) as stream:
        shutil.copyfileobj(content, stream, _CHUNK)
