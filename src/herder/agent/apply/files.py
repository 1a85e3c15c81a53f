"""Write the files of a plan if they differ, with the requested mode and owner."""

import base64
import binascii
import os
import shutil
from typing import List, Set

from herder.agent.apply import atomic_file
from herder.agent.core.plan import File

_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o755


class FileError(Exception):
    """A file cannot be written; the message names it and the reason."""


def apply(files: List[File]) -> None:
    """Write and fsync all files: a plan that was applied is not applied again after a power failure."""
    changed: Set[str] = set()  # directories
    for file in files:
        try:
            _apply(file, changed)
        except (OSError, ValueError) as error:
            raise FileError(f"file {file.path or '(without a path)'}: {error}") from error
    for directory in sorted(changed):
        try:
            atomic_file.sync_directory(directory)
        except OSError as error:
            raise FileError(f"directory {directory}: {error}") from error


def _apply(file: File, changed: Set[str]) -> None:
    if not file.path:
        raise ValueError("its path is empty")
    if file.delete:
        _delete(file)
    elif file.directory:
        mode = _mode(file, _DIRECTORY_MODE)
        os.makedirs(file.path, exist_ok=True)
        _set_owner_and_mode(file, mode)
    else:
        _write(file, changed)


def _delete(file: File) -> None:
    if file.directory and os.path.isdir(file.path) and not os.path.islink(file.path):
        shutil.rmtree(file.path)
    elif os.path.isdir(file.path) and not os.path.islink(file.path):
        os.rmdir(file.path)
    else:
        atomic_file.remove(file.path)


def _write(file: File, changed: Set[str]) -> None:
    mode = _mode(file, _FILE_MODE)
    try:
        content = base64.b64decode(file.content, validate=True)
    except binascii.Error as error:
        raise ValueError(f"its content is not base64 ({error})") from error
    if atomic_file.read(file.path) != content:
        target = os.path.realpath(file.path)  # a symlink stays a symlink
        os.makedirs(os.path.dirname(target), _DIRECTORY_MODE, exist_ok=True)
        _replace(target, content, mode)
        changed.add(os.path.dirname(target))
    _set_owner_and_mode(file, mode)


def _replace(path: str, content: bytes, mode: int) -> None:
    """Replace atomically if possible; a bind-mounted file can only be written in place."""
    try:
        atomic_file.put_in_place(path, content, mode, durable=True)
    except OSError:
        with open(path, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())


def _mode(file: File, default: int) -> int:
    if not file.permissions:
        return default
    try:
        return int(file.permissions, 8)
    except ValueError:
        raise ValueError(f"its permissions are not an octal number: {file.permissions!r}") from None


def _set_owner_and_mode(file: File, mode: int) -> None:
    """Set owner and mode; only root can change the owner."""
    found = os.stat(file.path)
    if found.st_mode & 0o7777 != mode:
        os.chmod(file.path, mode)
    if hasattr(os, "geteuid") and os.geteuid() == 0 and (found.st_uid, found.st_gid) != (file.uid, file.gid):
        os.chown(file.path, file.uid, file.gid)
