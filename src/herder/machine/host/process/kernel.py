"""System calls that Python 3.11 does not wrap, besides those shared with the runner's containers."""

from __future__ import annotations

import ctypes
import os

from herder.engine.runner.shim.kernel import CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER

CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
_ALL_BUT_USER = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC

_MOUNT_SETATTR = 442  # the same on all architectures
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID = 1, 2

_libc = ctypes.CDLL(None, use_errno=True)


def own_namespaces(*, user: bool) -> int:
    """Return the namespaces of a machine. Root does not need user namespaces."""
    return _ALL_BUT_USER | (CLONE_NEWUSER if user else 0)


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def make_read_only(path: str) -> None:
    """Recursively."""
    attributes = _MountAttributes(_MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID, 0, 0, 0)
    done = _libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        path.encode(),
        ctypes.c_uint(_AT_RECURSIVE),
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    _check(done, f"mount_setattr {path}")


def enter_namespaces(pidfd: int, namespaces: int) -> None:
    """Enter the namespaces of a process; new processes are in its PID namespace."""
    _check(_libc.setns(ctypes.c_int(pidfd), ctypes.c_int(namespaces)), "setns")


def set_hostname(name: str) -> None:
    _check(_libc.sethostname(name.encode(), ctypes.c_size_t(len(name.encode()))), "sethostname")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
