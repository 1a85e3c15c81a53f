"""Run a program inside a machine: enter its namespaces, start the program, and exit like it.

The request arrives over a socket; a terminal, created inside, is passed back over it.

This process stays in the PID namespace of the host, but sees the files of the machine. It must not read them: neither
modules nor the source lines of a traceback, whose coding declaration can name a module.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
import termios
from typing import Any, NoReturn

from herder.engine.runner.shim import kernel
from herder.machine.host.process import signals
from herder.machine.host.process.kernel import enter_namespaces, own_namespaces
from herder.machine.host.process.launch import become_owner

SHELLS = ("/bin/bash", "/bin/sh")
NOT_STARTED = 127  # exit status, as of a shell that cannot start a program
SFTP_SERVERS = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server")


def main() -> NoReturn:
    talk, pidfd = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    with talk.makefile("rb") as asked:
        config = json.loads(asked.readline())
    try:
        _run(config, talk, pidfd)
    except OSError as error:
        os.write(2, f"{error.filename or ''}: {error.strerror}\n".encode())
    finally:
        os._exit(NOT_STARTED)  # without a traceback


def _run(config: dict[str, Any], talk: socket.socket, pidfd: int) -> NoReturn:
    kernel.disable_imports()
    _step_inside(pidfd, config["owner"], own_namespaces(user=config["user_namespace"]))
    if config["memory"]:
        resource.setrlimit(resource.RLIMIT_DATA, (config["memory"] << 20, config["memory"] << 20))
    terminal = _terminal(talk, config["size"]) if config["size"] else None
    talk.close()
    child = os.fork()
    if child == 0:
        _become(config, terminal)
    if terminal is not None:
        os.close(terminal)
    for descriptor in (0, 1, 2):
        os.close(descriptor)  # the program alone decides when its output ends
    _end_like(child)


def _step_inside(pidfd: int, owner: list[int] | None, namespaces: int) -> None:
    """Enter the namespaces: the owner of the user namespace has all capabilities in it; without one, only root can
    enter.
    """
    own_user_namespace = bool(namespaces & kernel.CLONE_NEWUSER)
    if owner is not None and own_user_namespace:
        become_owner(owner)
    enter_namespaces(pidfd, namespaces)
    os.close(pidfd)
    if own_user_namespace:
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    elif owner is not None:
        become_owner(owner)


def _terminal(talk: socket.socket, size: list[int]) -> int:
    """Open the terminal from the machine's own /dev/ptmx, so that its name is valid inside."""
    ours, theirs = os.openpty()
    columns, rows = size[0], size[1]
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    talk.sendmsg([b"t"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [ours]))])
    os.close(ours)
    return theirs


def _become(config: dict[str, Any], terminal: int | None) -> NoReturn:
    try:
        os.setsid()
        if terminal is not None:
            fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
            for descriptor in (0, 1, 2):
                os.dup2(terminal, descriptor)
        os.umask(0o022)
        with contextlib.suppress(OSError):
            os.chdir("/root")
        signals.as_they_are()
        program, arguments = _program(config)
        environment = {**config["environment"], "SHELL": program}
        os.execve(program, arguments, environment)  # noqa: S606
    except OSError as error:
        os.write(2, f"{error.filename or ''}: {error.strerror}\n".encode())
    finally:
        os._exit(NOT_STARTED)


def _program(config: dict[str, Any]) -> tuple[str, list[str]]:
    if config["subsystem"]:
        server = next((path for path in SFTP_SERVERS if os.access(path, os.X_OK)), "")
        if config["subsystem"] != "sftp" or not server:
            raise FileNotFoundError(2, "this host has no program for it", f"subsystem {config['subsystem']}")
        return server, [server]
    shell = next((path for path in SHELLS if os.access(path, os.X_OK)), SHELLS[-1])
    if config["command"] is None:
        return shell, [f"-{os.path.basename(shell)}"]
    return shell, [shell, "-c", config["command"]]


def _end_like(child: int) -> NoReturn:
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


if __name__ == "__main__":
    main()
