"""Run a program in a network of its own, which has only a loopback: no process outside can connect to it.

python -m herder.machine.private_network UID PROGRAM WORD…

Hosts that do not allow this cannot run process machines either, with which the program would share the loopback. There
it runs in the host's network.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import sys
from typing import NoReturn

from herder.engine.runner.shim import kernel
from herder.engine.runner.shim.init import map_ids

_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1


def main() -> NoReturn:
    user, words = int(sys.argv[1]), sys.argv[2:]
    with contextlib.suppress(PermissionError):
        _leave_network()
    if user != os.geteuid():
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    kernel.no_new_privileges()
    os.execve(words[0], words, dict(os.environ))  # noqa: S606 - a list of words, no shell


def _leave_network() -> None:
    if os.geteuid() == 0:
        kernel.unshare(kernel.CLONE_NEWNET)
    else:
        uid, gid = os.geteuid(), os.getegid()
        kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNET)
        map_ids((uid, uid), (gid, gid))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


if __name__ == "__main__":
    main()
