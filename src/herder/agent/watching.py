"""Waits until something below a directory changes: the kernel tells of it (inotify), or else some time has passed."""

import errno
import functools
import os
import select
import struct
import sys
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x8, 0x40, 0x80, 0x100, 0x200
_OVERFLOW, _IGNORED = 0x4000, 0x8000
_ONLY_DIRECTORIES, _IS_DIRECTORY = 0x01000000, 0x40000000
_NAMES = _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ONLY_DIRECTORIES
_CONTENT = _NAMES | _CLOSE_WRITE
_NO_MORE_TOLD = _OVERFLOW | _IGNORED  # events were lost, or a directory that was watched is gone

_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name behind it
_BUFFER = 65536
_LIMITS = {
    errno.EMFILE: "fs.inotify.max_user_instances, or that of open files, is reached",
    errno.ENOSPC: "fs.inotify.max_user_watches is reached",
}
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP)


class Touched(NamedTuple):
    path: str
    whole: bool  # else it was only just made, and whoever made it may still be writing


class Unwatchable(Exception):
    """The kernel does not tell of changes; the message says why."""


class Bell:
    """Ends all waiting, at once and for good. Rung from any thread."""

    def __init__(self) -> None:
        self._rung = threading.Event()
        self._once = threading.Lock()
        self.descriptor, self._other_end = os.pipe()  # hangs up when it is rung

    def ring(self) -> None:
        with self._once:
            if not self._rung.is_set():
                self._rung.set()
                os.close(self._other_end)

    def is_rung(self) -> bool:
        return self._rung.is_set()

    def wait(self, seconds: float) -> bool:
        """Whether it was rung."""
        return self._rung.wait(seconds)

    def close(self) -> None:
        """By whoever has waited for it."""
        os.close(self.descriptor)


class Interval:
    """For systems that tell nothing: everything may have changed when it is over."""

    def __init__(self, seconds: float, bell: Bell) -> None:
        self._seconds = seconds
        self._bell = bell

    def wait(self, _: Optional[float]) -> None:
        self._bell.wait(self._seconds)

    def close(self) -> None:
        pass


class Tree:
    """A directory with all below it, as it is now: of use until directories come, go or move.

    The way to it is watched too, as the directory may be made later, or another one put in its place.
    """

    def __init__(self, directory: str, life: float, bell: Bell) -> None:
        """`life`: after so many seconds it is of no use either. Not all is told: not what other hosts write on network
        file systems, not what is mounted over a directory."""
        self._kernel = _Inotify()
        self._until = time.monotonic() + life
        self._poll = select.poll()
        self._poll.register(self._kernel.descriptor, select.POLLIN)
        self._poll.register(bell.descriptor, select.POLLIN)
        self._folders: Dict[int, str] = {}
        self._ways: Dict[int, Set[str]] = {}
        try:
            for path in {os.path.abspath(directory), os.path.realpath(directory)}:
                self._watch_way_to(path)
            self._watch_below(directory)
        except BaseException:
            self.close()
            raise

    def wait(self, seconds: Optional[float]) -> Optional[List[Touched]]:
        """For so long at most, or until the bell rings. None: everything may have changed, and this is of no use."""
        left = self._until - time.monotonic()
        self._poll.poll(max(0, 1 + int(1000 * (left if seconds is None else min(left, seconds)))))
        return self._read() if time.monotonic() < self._until else None

    def close(self) -> None:
        self._kernel.close()

    def _watch_way_to(self, path: str) -> None:
        """From the root on: what is replaced below the part that is watched already is told."""
        parent, name = os.path.split(path)
        if not name:
            return
        self._watch_way_to(parent)
        watch = self._kernel.add(parent, _NAMES)
        if watch is not None:
            self._ways.setdefault(watch, set()).add(name)

    def _watch_below(self, folder: str) -> None:
        """First watched, then listed: a directory that is made in between is told."""
        watch = self._kernel.add(folder, _CONTENT)
        if watch is None:
            return
        self._folders[watch] = folder
        for each in _folders_in(folder):
            self._watch_below(each)

    def _read(self) -> Optional[List[Touched]]:
        touched = []
        for watch, mask, name in self._kernel.read():
            folder = self._folders.get(watch)
            if mask & _NO_MORE_TOLD or name in self._ways.get(watch, ()):
                return None
            if folder is not None and mask & _IS_DIRECTORY:
                return None
            if folder is not None:
                touched.append(Touched(os.path.join(folder, name), not mask & _CREATE))
        return touched


def _folders_in(folder: str) -> List[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # it is gone again, which is told
        return []


@functools.lru_cache(maxsize=None)
def _c_library() -> Tuple[Any, Callable[[], int]]:
    """And how to ask for the reason of its last refusal."""
    if not sys.platform.startswith("linux"):
        raise Unwatchable(f"{sys.platform} has no inotify")
    try:
        import ctypes  # not every Python has it
    except ImportError as error:
        raise Unwatchable(str(error)) from error
    return ctypes.CDLL(None, use_errno=True), ctypes.get_errno


class _Inotify:
    """The kernel's calls, by way of the C library: Python has none of its own."""

    def __init__(self) -> None:
        self._library, self._errno = _c_library()
        self.descriptor = int(self._library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        if self.descriptor < 0:
            raise self._refusal()

    def add(self, path: str, mask: int) -> Optional[int]:
        """None where there is no such directory (now), or none that this user may look into."""
        watch = int(self._library.inotify_add_watch(self.descriptor, os.fsencode(path), mask))
        if watch >= 0:
            return watch
        if self._errno() in _NOT_THERE:
            return None
        raise self._refusal()

    def read(self) -> List[Tuple[int, int, str]]:
        try:
            content = os.read(self.descriptor, _BUFFER)
        except BlockingIOError:
            return []
        found = []
        at = 0
        while at < len(content):
            watch, mask, _, length = _EVENT.unpack_from(content, at)
            at += _EVENT.size + length
            found.append((watch, mask, os.fsdecode(content[at - length : at].rstrip(b"\0"))))
        return found

    def close(self) -> None:
        os.close(self.descriptor)

    def _refusal(self) -> Unwatchable:
        number = self._errno()
        return Unwatchable(f"the limit {_LIMITS[number]}" if number in _LIMITS else os.strerror(number))
