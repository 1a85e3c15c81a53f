"""Keep the RPC of a driver plugin between rancher-machine and the plugin.

A plugin serves RPC on a loopback port and authenticates no client: whoever connects can read the cloud credential. Jobs
of the runner share that loopback with process machines. So rancher-machine starts this program in place of the plugin:

- It starts the plugin, connects to it, and shuts the plugin's listener down before the plugin has any configuration.
- It reports a port of its own, and accepts one connection there: that of the process that started it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

PROGRAM_VARIABLE = "HERDER_PLUGIN_PROGRAM"  # path of rancher-machine, which is the plugin of the drivers it contains
DRIVER_PREFIX = "docker-machine-driver-"
CONNECT_SECONDS = 10.0
LOOPBACK = "127.0.0.1"
_LISTENING = "0A"
_SYS_PIDFD_GETFD = 438  # the same on all architectures
_libc = ctypes.CDLL(None, use_errno=True)


class NotPrivate(Exception):
    """Another process may be connected to the plugin, or its listener cannot be closed."""


def write_programs(directory: Path, driver: str) -> Path:
    """Write this program under the names by which rancher-machine finds plugins; return the one of its own drivers."""
    text = f"#!{sys.executable} -P\nfrom herder.machine.plugin_relay import main\n\nmain()\n"
    for name in ("rancher-machine", f"{DRIVER_PREFIX}{driver}"):
        path = directory / name
        path.write_text(text)
        path.chmod(0o700)
    return directory / "rancher-machine"


def main() -> None:
    parent = os.getppid()
    plugin = subprocess.Popen([_real_program(), *sys.argv[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    signal.signal(signal.SIGTERM, lambda *_: plugin.kill())
    assert plugin.stdout is not None
    try:
        with _private_connection(plugin, plugin.stdout) as inner, _accepted(parent) as outer:
            threading.Thread(target=_copy_output, args=(plugin.stdout,), daemon=True).start()
            threading.Thread(target=_copy, args=(outer, inner), daemon=True).start()
            _copy(inner, outer)
    except (NotPrivate, OSError) as error:
        sys.stderr.write(f"driver plugin: {error}\n")
    finally:
        plugin.kill()
        os._exit(plugin.wait() and 1)


def _real_program() -> str:
    """The plugin that rancher-machine wants to start: itself, or the driver of that name further along PATH."""
    own = Path(sys.argv[0])
    if not own.name.startswith(DRIVER_PREFIX):
        return os.environ[PROGRAM_VARIABLE]
    others = [each for each in os.environ.get("PATH", os.defpath).split(":") if Path(each) != own.parent]
    found = shutil.which(own.name, path=":".join(others))
    if found is None:
        raise FileNotFoundError(2, "not found", own.name)
    return found


# --- the plugin's side ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _private_connection(plugin: subprocess.Popen[bytes], output: IO[bytes]) -> Iterator[socket.socket]:
    """The only connection to the plugin. Others may have connected before; nothing was sent to the plugin yet."""
    port = int(output.readline(64).rpartition(b":")[2] or 0)
    with socket.create_connection((LOOPBACK, port), CONNECT_SECONDS) as inner:
        inner.settimeout(None)
        _shut_down_listener(plugin.pid, (LOOPBACK, port))
        own = inner.getsockname()
        if any(each.remote != own for each in _sockets() if each.local == (LOOPBACK, port)):
            raise NotPrivate("another process connected to it")
        yield inner


def _shut_down_listener(pid: int, address: Address) -> None:
    listeners = {each.inode for each in _sockets() if each.state == _LISTENING and each.local == address}
    for descriptor, inode in _descriptors(pid):
        if inode in listeners:
            with _duplicate(pid, descriptor) as listener:
                listener.shutdown(socket.SHUT_RDWR)
    if any(each.state == _LISTENING and each.local == address for each in _sockets()):
        raise NotPrivate("its listener could not be closed")


@contextlib.contextmanager
def _duplicate(pid: int, descriptor: int) -> Iterator[socket.socket]:
    pidfd = os.pidfd_open(pid)
    try:
        found: int = _libc.syscall(ctypes.c_long(_SYS_PIDFD_GETFD), pidfd, descriptor, 0)
        if found < 0:
            number = ctypes.get_errno()
            raise NotPrivate(f"its listener could not be closed: pidfd_getfd: {os.strerror(number)}")
    finally:
        os.close(pidfd)
    with socket.socket(fileno=found) as duplicate:
        yield duplicate


# --- rancher-machine's side -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _accepted(parent: int) -> Iterator[socket.socket]:
    """The connection of rancher-machine, which reads the address from the first line of output."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        listener.settimeout(CONNECT_SECONDS)
        sys.stdout.write(f"{LOOPBACK}:{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        outer = _connection_of(parent, listener)
    with outer:
        outer.settimeout(None)
        yield outer


def _connection_of(parent: int, listener: socket.socket) -> socket.socket:
    while True:
        outer, remote = listener.accept()
        own = listener.getsockname()
        theirs = {each.inode for each in _sockets() if (each.local, each.remote) == (remote, own)}
        if theirs & {inode for _, inode in _descriptors(parent)}:
            return outer
        outer.close()


# --- sockets and bytes ----------------------------------------------------------------------------------------------


Address = tuple[str, int]


class _Socket(NamedTuple):
    local: Address
    remote: Address
    state: str
    inode: str


def _sockets() -> list[_Socket]:
    """TCP sockets of this network namespace."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [_Socket(_address(words[1]), _address(words[2]), words[3], words[9]) for words in lines]


def _address(text: str) -> Address:
    """Read the kernel's notation: an address in the byte order of the host, and a port."""
    host, _, port = text.partition(":")
    return socket.inet_ntoa(struct.pack("=I", int(host, 16))), int(port, 16)


def _descriptors(pid: int) -> Iterator[tuple[int, str]]:
    """Descriptors of a process that are sockets, with their inodes."""
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(path)
            if target.startswith("socket:["):
                yield int(path.name), target[len("socket:[") : -1]


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


def _copy_output(output: IO[bytes]) -> None:
    with contextlib.suppress(OSError):
        for line in output:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
