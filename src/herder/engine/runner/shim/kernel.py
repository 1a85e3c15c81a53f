"""System calls that Python 3.11 does not wrap."""

from __future__ import annotations

import ctypes
import os
import sys

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
_PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 24, 47, 4
_CAPABILITY_VERSION_3, _CAPABILITIES = 0x20080522, 64

# Numbers above 424 are the same on every architecture.
_SYS_OPENAT2, _SYS_MOUNT_SETATTR = 437, 442
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 2, 4, 8
_AT_EMPTY_PATH, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = 0x1000, 0x8000, 1

_libc = ctypes.CDLL(None, use_errno=True)


def disable_imports() -> None:
    """Keep this process from importing modules, before it changes to a file system that others write."""
    sys.meta_path.clear()


def unshare(flags: int) -> None:
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def join_namespace(pid: int, kind: str) -> None:
    """Enter a namespace of another process; `kind` as in /proc/PID/ns."""
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


def open_beneath(directory: int, path: str, flags: int) -> int:
    """openat2 that neither leaves `directory` nor follows symbolic links. Raises OSError ENOSYS before Linux 5.6."""
    resolve = _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS
    how = (ctypes.c_uint64 * 3)(flags, 0, resolve)  # struct open_how
    found: int = _libc.syscall(
        ctypes.c_long(_SYS_OPENAT2), ctypes.c_int(directory), os.fsencode(path), how, ctypes.c_size_t(24)
    )
    if found < 0:
        _check(-1, path)
    return found


def set_mounts_read_only(descriptor: int) -> None:
    """Make the mount at the open root and all mounts below it read-only. Raises OSError ENOSYS before Linux 5.12."""
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_RDONLY, 0, 0, 0)  # struct mount_attr
    done = _libc.syscall(
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_int(descriptor),
        b"",
        ctypes.c_uint(_AT_EMPTY_PATH | _AT_RECURSIVE),
        attributes,
        ctypes.c_size_t(32),
    )
    _check(done, "mount_setattr")


def pivot_into(new_root: str) -> None:
    """Make `new_root` the root of this mount namespace and detach the old one."""
    os.chdir(new_root)
    _check(_libc.pivot_root(b".", b"."), "pivot_root")
    # Both roots are stacked at "." now; detach the old one, which is on top.
    _check(_libc.umount2(b".", ctypes.c_int(MNT_DETACH)), "umount")
    os.chdir("/")


def unmount(target: str) -> None:
    _check(_libc.umount2(target.encode(), ctypes.c_int(MNT_DETACH)), target)


def die_with_parent(signal_number: int) -> None:
    _prctl(_PR_SET_PDEATHSIG, signal_number)


def adopt_orphans() -> None:
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def keep_own_proc_files() -> None:
    """Restore ownership of /proc/self, which a change of user gives to root; writing ID maps requires it."""
    _prctl(_PR_SET_DUMPABLE, 1)


def no_new_privileges() -> None:
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def drop_bounding_set() -> None:
    """Empty the capability bounding set, so that no exec can gain a capability."""
    for capability in range(_CAPABILITIES):
        try:
            _prctl(_PR_CAPBSET_DROP, capability)
        except PermissionError:
            return  # without CAP_SETPCAP there is no capability to pass on
        except OSError:
            return  # beyond the last capability of this kernel


def drop_capabilities() -> None:
    """Drop permitted, effective, inheritable and ambient capabilities, after the bounding set, which needs
    CAP_SETPCAP."""
    drop_bounding_set()
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero), "prctl")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
