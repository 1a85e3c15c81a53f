"""The few system calls that Python 3.11 does not wrap."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_NOATIME, MS_NODIRATIME, MS_BIND, MS_REC = 32, 1024, 2048, 4096, 16384
MS_UNBINDABLE, MS_PRIVATE, MS_SHARED, MS_RELATIME = 1 << 17, 1 << 18, 1 << 20, 1 << 21
MNT_DETACH = 2

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def join_namespace(pid: int, kind: str) -> None:
    """The one that a process is in; `kind` as in /proc/PID/ns."""
    descriptor = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(ctypes.c_int(descriptor), ctypes.c_int(0)), f"/proc/{pid}/ns/{kind}")
    finally:
        os.close(descriptor)


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    done = _libc.mount(
        source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), data.encode() or None
    )
    _check(done, target)


def pivot_into(new_root: str) -> None:
    """Make `new_root` the root of this mount namespace and let go of the old one."""
    os.chdir(new_root)
    _check(_libc.pivot_root(b".", b"."), "pivot_root")
    # Both roots are stacked at "." now; the old one, on top, goes.
    _check(_libc.umount2(b".", ctypes.c_int(MNT_DETACH)), "umount")
    os.chdir("/")


def die_with_parent(signal_number: int) -> None:
    _prctl(_PR_SET_PDEATHSIG, signal_number)


def adopt_orphans() -> None:
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def keep_own_proc_files() -> None:
    """After a change of user the kernel hands /proc/self to root; writing one's own id maps needs it back."""
    _prctl(_PR_SET_DUMPABLE, 1)


def no_new_privileges() -> None:
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero), "prctl")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
