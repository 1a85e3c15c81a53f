"""Cache of unpacked images on the node, by digest.

A directory gets its name only once it is complete. Its contents are listed with digests next to it, and verified before
each use, because users of an image may change it. Images that neither the current nor the previous plan references are
removed.
"""

import contextlib
import hashlib
import json
import os
import shutil
import stat
from typing import Any, Callable, Dict, List, Optional, Set

from herder.agent.apply import atomic_file

_INDEX = "index.json"
_LISTING, _UNFINISHED = ".json", ".new"
_CHUNK = 1 << 20
_DIRECTORY_MODE = 0o755


class ImageCache:
    def __init__(self, directory: str) -> None:
        os.makedirs(directory, 0o700, exist_ok=True)
        self._directory = directory
        self._index = _Index(os.path.join(directory, _INDEX))

    def begin(self, images: Set[str]) -> None:
        """A plan with these images is about to run."""
        self._index.begin(images)
        self._clean()

    def add(self, digest: str, fill: Callable[[str], None]) -> None:
        """Add an image; `fill` unpacks it into the given directory."""
        path = self._path(digest)
        unfinished = path + _UNFINISHED
        for old in (path, unfinished):
            shutil.rmtree(old, ignore_errors=True)
        os.mkdir(unfinished, _DIRECTORY_MODE)
        try:
            fill(unfinished)
            atomic_file.write(path + _LISTING, json.dumps(_listing(unfinished)).encode(), durable=True)
            os.rename(unfinished, path)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise

    def has(self, digest: str) -> bool:
        """Whether the image is cached and unmodified."""
        path = self._path(digest)
        if not os.path.isdir(path):
            return False
        try:
            listed = json.loads((atomic_file.read(path + _LISTING) or b"null").decode())
            return listed is not None and bool(listed == _listing(path))
        except (OSError, ValueError):
            return False

    def place(self, image: str, digest: str, directory: str) -> None:
        """Place the image into a directory."""
        _link_all(self._path(digest), directory)
        self._index.used(image, digest)
        self._clean()

    def digest_in(self, archive: str, image: str) -> Optional[str]:
        """Return the digest of an image in a known archive; "" if it is not in there, None if the archive
        is unknown.
        """
        return self._index.found_in(archive, image)

    def note(self, archive: str, image: str, digest: str) -> None:
        self._index.note(archive, image, digest)

    def _path(self, digest: str) -> str:
        return os.path.join(self._directory, digest.partition(":")[2])

    def _clean(self) -> None:
        wanted = {os.path.basename(self._path(digest)) for digest in self._index.digests()}
        for name in os.listdir(self._directory):
            path = os.path.join(self._directory, name)
            if name == _INDEX or name in wanted or (name.endswith(_LISTING) and name[: -len(_LISTING)] in wanted):
                continue
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                atomic_file.remove(path)


class _Index:
    """Index of images that plans reference, their digests, and the contents of known archives."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._values = self._read()

    def begin(self, images: Set[str]) -> None:
        values = self._values
        if sorted(images) != values["current"]:
            values["previous"], values["current"] = values["current"], sorted(images)
        named = {*values["previous"], *values["current"]}
        values["digests"] = {image: digest for image, digest in values["digests"].items() if image in named}
        for path, known in list(values["archives"].items()):
            known["images"] = {image: digest for image, digest in known["images"].items() if image in named}
            if known["stamp"] != _stamp(path) or not known["images"]:
                del values["archives"][path]
        self._write()

    def used(self, image: str, digest: str) -> None:
        if self._values["digests"].get(image) != digest:
            self._values["digests"][image] = digest
            self._write()

    def digests(self) -> List[str]:
        return list(self._values["digests"].values())

    def found_in(self, archive: str, image: str) -> Optional[str]:
        known = self._values["archives"].get(archive)
        if known is None or known["stamp"] != _stamp(archive):
            return None
        found: Optional[str] = known["images"].get(image)
        return found

    def note(self, archive: str, image: str, digest: str) -> None:
        known = self._values["archives"].get(archive)
        if known is None or known["stamp"] != _stamp(archive):
            known = self._values["archives"][archive] = {"stamp": _stamp(archive), "images": {}}
        known["images"][image] = digest
        self._write()

    def _read(self) -> Dict[str, Any]:
        """Without a readable index, everything is looked up again."""
        empty: Dict[str, Any] = {"current": [], "previous": [], "digests": {}, "archives": {}}
        try:
            value = json.loads((atomic_file.read(self._path) or b"{}").decode())
        except (OSError, ValueError):
            return empty
        usable = isinstance(value, dict) and all(isinstance(value.get(key), type(each)) for key, each in empty.items())
        return value if usable else empty

    def _write(self) -> None:
        atomic_file.write(self._path, json.dumps(self._values).encode())


def _stamp(path: str) -> List[int]:
    """Return a value that changes when the archive is replaced or written."""
    try:
        found = os.stat(path)
    except OSError:
        return []
    return [found.st_ino, found.st_size, found.st_mtime_ns]


# --- directories ----------------------------------------------------------------------------------------------------


def _listing(root: str) -> List[List[Any]]:
    """List everything in the directory, in order: path, type, mode and content."""
    found: List[List[Any]] = []
    for folder, directories, names in os.walk(root):
        for name in directories + names:
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            content = ""
            if stat.S_ISLNK(mode):
                content = os.readlink(path)
            elif stat.S_ISREG(mode):
                content = _digest(path)
            found.append([os.path.relpath(path, root), mode, content])
    return sorted(found)


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as stream:
        while True:
            chunk = stream.read(_CHUNK)
            if not chunk:
                return digest.hexdigest()
            digest.update(chunk)


def _link_all(source: str, target: str) -> None:
    """Hard-link the files if possible: modifications are detected at the next use."""
    for folder, directories, names in os.walk(source):
        into = os.path.normpath(os.path.join(target, os.path.relpath(folder, source)))
        for name in directories + names:
            original, path = os.path.join(folder, name), os.path.join(into, name)
            if os.path.isdir(original) and not os.path.islink(original):
                _make_directory(path)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                _link(original, path)


def _make_directory(path: str) -> None:
    if os.path.islink(path) or not os.path.isdir(path):
        atomic_file.remove(path)
        os.mkdir(path)
    os.chmod(path, _DIRECTORY_MODE)


def _link(original: str, path: str) -> None:
    if os.path.islink(original):
        os.symlink(os.readlink(original), path)
        return
    try:
        os.link(original, path)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(original, path)
