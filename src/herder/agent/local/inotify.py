"""Wait for changes below a directory, with inotify or by polling."""

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
_WATCH_INVALID = _OVERFLOW | _IGNORED  # events were lost, or a watched directory was removed

_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the following name
_BUFFER = 65536
_LIMITS = {
    errno.EMFILE: "fs.inotify.max_user_instances, or that of open files, is reached",
    errno.ENOSPC: "fs.inotify.max_user_watches is reached",
}
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP)


class Touched(NamedTuple):
    path: str
    whole: bool  # otherwise it was just created and may still be written


class Unwatchable(Exception):
    """inotify is not available; the message says why."""


class StopSignal:
    """Ends all waiting permanently. May be set from any thread."""

    def __init__(self) -> None:
        self._rung = threading.Event()
        self._once = threading.Lock()
        self.descriptor, self._other_end = os.pipe()  # hangs up when it is set

    def ring(self) -> None:
        with self._once:
            if not self._rung.is_set():
                self._rung.set()
                os.close(self._other_end)

    def is_rung(self) -> bool:
        return self._rung.is_set()

    def wait(self, seconds: float) -> bool:
        """Return whether it was set."""
        return self._rung.wait(seconds)

    def close(self) -> None:
        """Called by the waiting thread."""
        os.close(self.descriptor)


class Interval:
    """Polling, for systems without inotify: everything may have changed after the interval."""

    def __init__(self, seconds: float, stop_signal: StopSignal) -> None:
        self._seconds = seconds
        self._bell = stop_signal

    def wait(self, _: Optional[float]) -> None:
        self._bell.wait(self._seconds)

    def close(self) -> None:
        pass


class Tree:
    """Watches a directory tree as it is now; becomes invalid when directories appear, disappear or move.

    Parent directories are watched too, because the directory may be created or replaced later.
    """

    def __init__(self, directory: str, life: float, stop_signal: StopSignal) -> None:
        """`life`: seconds after which it becomes invalid, because inotify does not report everything: not writes of
        other hosts on network file systems, nor mounts.
        """
        self._kernel = _Inotify()
        self._until = time.monotonic() + life
        self._poll = select.poll()
        self._poll.register(self._kernel.descriptor, select.POLLIN)
        self._poll.register(stop_signal.descriptor, select.POLLIN)
        self._folders: Dict[int, str] = {}
        self._ways: Dict[int, Set[str]] = {}
        try:
            for path in {os.path.abspath(directory), os.path.realpath(directory)}:
                self._watch_parents(path)
            self._watch_below(directory)
        except BaseException:
            self.close()
            raise

    def wait(self, seconds: Optional[float]) -> Optional[List[Touched]]:
        """Wait for changes, at most so long. None: the watch is invalid, everything may have changed."""
        left = self._until - time.monotonic()
        self._poll.poll(max(0, 1 + int(1000 * (left if seconds is None else min(left, seconds)))))
        return self._read() if time.monotonic() < self._until else None

    def close(self) -> None:
        self._kernel.close()

    def _watch_parents(self, path: str) -> None:
        """Watch all parents from the root on, so that a replacement at any level is noticed."""
        parent, name = os.path.split(path)
        if not name:
            return
        self._watch_parents(parent)
        watch = self._kernel.add(parent, _NAMES)
        if watch is not None:
            self._ways.setdefault(watch, set()).add(name)

    def _watch_below(self, folder: str) -> None:
        """Watch before listing, so that a directory created in between is reported."""
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
            if mask & _WATCH_INVALID or name in self._ways.get(watch, ()):
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
    except OSError:  # it was removed again, which is reported
        return []


@functools.lru_cache(maxsize=None)
def _c_library() -> Tuple[Any, Callable[[], int]]:
    """Return the C library and a function that returns its errno."""
    if not sys.platform.startswith("linux"):
        raise Unwatchable(f"{sys.platform} has no inotify")
    try:
        import ctypes  # not every Python has ctypes
    except ImportError as error:
        raise Unwatchable(str(error)) from error
    return ctypes.CDLL(None, use_errno=True), ctypes.get_errno


class _Inotify:
    """inotify calls through the C library, since Python has none."""

    def __init__(self) -> None:
        self._library, self._errno = _c_library()
        self.descriptor = int(self._library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        if self.descriptor < 0:
            raise self._refusal()

    def add(self, path: str, mask: int) -> Optional[int]:
        """Add a watch; None if the directory does not exist or is not accessible."""
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
