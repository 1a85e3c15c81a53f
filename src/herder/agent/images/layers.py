"""Layers become a directory: each on top of those before it, and nothing ever outside of it."""

import os
import shutil
import stat
import tarfile
from typing import IO, List

from herder.agent.images.reference import ImageError

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_MODE = 0o755
_MOST_LINKS = 40


def unpack(stream: IO[bytes], root: str, only: str = "") -> None:
    """One layer. With `only`, what is below that path, there at the top."""
    base = os.path.realpath(root)
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            path = _parts(member.name)
            if only:
                if path[: len(_parts(only))] != _parts(only):
                    continue
                path = path[len(_parts(only)) :]
            if path:
                _place(archive, member, base, path)


def _parts(name: str) -> List[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ImageError(f"an image's layer has {name!r}, which leads out of it")
    return parts


def _place(archive: tarfile.TarFile, member: tarfile.TarInfo, base: str, path: List[str]) -> None:
    name = path[-1]
    parent = _inside(base, path[:-1], member.name)
    if name == _OPAQUE:
        for each in os.listdir(parent):
            _remove(os.path.join(parent, each))
        return
    if name.startswith(_WHITEOUT):
        _remove(os.path.join(parent, name[len(_WHITEOUT) :]))
        return
    target = os.path.join(parent, name)
    if member.isdir():
        if os.path.islink(target) or not os.path.isdir(target):
            _remove(target)
            os.mkdir(target)
        os.chmod(target, _MODE)
    elif member.isreg():
        _remove(target)
        _write(archive, member, target)
    elif member.issym():
        _remove(target)
        os.symlink(member.linkname, target)
    elif member.islnk():
        source_path = _parts(member.linkname)
        source = os.path.join(_inside(base, source_path[:-1], member.linkname), source_path[-1])
        _remove(target)
        os.link(source, target, follow_symlinks=False)


def _inside(base: str, path: List[str], told: str) -> str:
    """The directory, made if need be. Links on the way are followed as if `base` were the root of everything."""
    at: List[str] = []
    left = list(reversed(path))
    links = 0
    while left:
        part = left.pop()
        if part == "..":
            at = at[:-1]
            continue
        here = os.path.join(base, *at, part)
        if os.path.islink(here):
            links += 1
            if links > _MOST_LINKS:
                raise ImageError(f"an image's layer has links that lead in a circle, at {told!r}")
            goal = os.readlink(here)
            at = [] if goal.startswith("/") else at
            left += reversed([each for each in goal.split("/") if each not in ("", ".")])
            continue
        if not os.path.isdir(here):
            _remove(here)
            os.mkdir(here, _MODE)
        at.append(part)
    return os.path.join(base, *at)


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, target: str) -> None:
    """No more rights than everybody may have; a file without any gets the usual ones."""
    content = archive.extractfile(member)
    assert content is not None
    mode = stat.S_IMODE(member.mode) & _MODE or _MODE
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as stream:
        shutil.copyfileobj(content, stream, 1 << 16)
    os.chmod(target, mode)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
