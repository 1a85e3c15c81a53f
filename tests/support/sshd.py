"""A host with a real OpenSSH server, for as long as a test: in network, mount and host-name namespaces of its own, so
that what is done to it is not done to us, and reached by a port on loopback.

It needs root, for the namespaces and because sshd does. Debian's packages are unpacked into a cache, not installed.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import functools
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from herder.machine.ssh.keys import new_key_pair

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "herder" / "sshd"
PACKAGES = ("openssh-server", "libwrap0", "libnsl2", "libtirpc3")
INSIDE = Path("/run/machine")  # where the host sees its own directory
FRIEND = "friend"  # a user who is not root; sudo asks for a password

_CONFIG = f"""
HostKey {INSIDE}/host_key
AuthorizedKeysFile {INSIDE}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
PidFile none
Subsystem sftp internal-sftp
SetEnv PATH={INSIDE}/bin:/usr/sbin:/usr/bin:/sbin:/bin
"""

# Everything that a machine's setup writes to is the host's own.
_HOST = f"""set -e
mount -t tmpfs none /run
mkdir -p /run/sshd {INSIDE}
mount --bind "$1" {INSIDE}
cp -a /etc /run/etc
cp {INSIDE}/etc/* /run/etc
mount --bind /run/etc /etc
mount -t tmpfs -o mode=1777 none /tmp
ip link set lo up
hostname before
echo ready
exec cat
"""

_PROGRAMS = {
    # Enough of sudo: root may, everybody else would have to type a password.
    "sudo": """while case "$1" in -*) ;; *) false ;; esac; do shift; done
[ "$(id -u)" = 0 ] && exec "$@"
echo "sudo: a password is required" >&2; exit 1
""",
    # The Go program installs packages wherever it goes.
    "apt-get": "exit 0\n",
    "shutdown": f'echo "$@" >>{INSIDE}/shutdowns\n',
}


class Sshd:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = "127.0.0.1"
        self.key = directory / "client_key"  # lets root and the friend in
        self._host: subprocess.Popen[bytes] | None = None
        self._connections: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Sshd:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._write_files()
        _keygen(self.key)
        shutil.copy(self.key.with_suffix(".pub"), self.directory / "authorized_keys")
        (self.directory / "authorized_keys").chmod(0o644)
        self.new_host_key()
        self._host = subprocess.Popen(
            ["unshare", "--net", "--uts", "--mount", "sh", "-c", _HOST, "sh", self.directory],
            stdin=subprocess.PIPE,  # which closes when we die: then the host is gone, too
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._host.stdout is not None
        assert self._host.stdout.readline() == b"ready\n", "the host's namespaces could not be made"
        self._listener = socket.create_server((self.address, 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse()
        for process in self._connections:
            process.kill()
            process.wait()
        if self._host is not None:
            self._host.communicate(timeout=20)

    def refuse(self) -> None:
        """From now on the port is closed."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def without_sftp(self) -> None:
        """From the next connection on, as on hosts that have the server alone."""
        config = self.directory / "sshd_config"
        config.write_text("".join(line for line in _CONFIG.splitlines(keepends=True) if "sftp" not in line))

    def new_host_key(self) -> None:
        """As if it was installed anew."""
        for suffix in ("", ".pub"):
            self.directory.joinpath(f"host_key{suffix}").unlink(missing_ok=True)
        _keygen(self.directory / "host_key")

    def shell(self, command: str) -> str:
        """What a command prints there, without SSH."""
        done = subprocess.run(
            [*self._enter(), "sh", "-c", command], capture_output=True, text=True, timeout=20, check=True
        )
        return done.stdout

    def log(self) -> str:
        return (self.directory / "sshd.log").read_text()

    def _enter(self) -> list[str]:
        assert self._host is not None
        return ["nsenter", "--target", str(self._host.pid), "--net", "--uts", "--mount"]

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, (self.directory / "sshd.log").open("ab") as log:
                self._connections.append(
                    subprocess.Popen(
                        [*self._enter(), programs(), "-i", "-e", "-f", INSIDE / "sshd_config"],
                        stdin=connection,
                        stdout=connection,
                        stderr=log,
                        env={"PATH": os.defpath, "LD_LIBRARY_PATH": str(CACHE / "usr/lib/x86_64-linux-gnu")},
                    )
                )

    def _write_files(self) -> None:
        self.directory.chmod(0o755)
        (self.directory / "sshd_config").write_text(_CONFIG)
        for name, body in _PROGRAMS.items():
            path = self.directory / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#!/bin/sh\n{body}")
            path.chmod(0o755)
        etc = self.directory / "etc"
        etc.mkdir(exist_ok=True)
        users = (
            f"root:*:0:0::/root:/bin/sh\n{FRIEND}:*:4321:4321::/tmp:/bin/sh\nsshd:*:4322:4322::/run/sshd:/bin/false\n"
        )
        (etc / "passwd").write_text(users)
        (etc / "group").write_text(f"root:*:0:\n{FRIEND}:*:4321:\nsshd:*:4322:\n")
        (etc / "hostname").write_text("before\n")
        (etc / "hosts").write_text("127.0.0.1 localhost\n")


def _keygen(path: Path) -> None:
    private, public = new_key_pair()
    path.touch(mode=0o600)
    path.write_bytes(private)
    path.with_suffix(".pub").write_bytes(public)


@functools.cache
def programs() -> Path:
    """The server's program, fetched once."""
    program = CACHE / "usr/sbin/sshd"
    if not program.exists():
        _fetch()
    return program


def _fetch() -> None:
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE.parent) as folder:
        wanted = [name for name in PACKAGES if name == "openssh-server" or not ctypes.util.find_library(name[3:-1])]
        download = ["apt-get", "-qq", "download", *wanted]
        if subprocess.run(download, cwd=folder, timeout=120, check=False).returncode:  # it has no lists yet
            subprocess.run(["apt-get", "-qq", "update"], timeout=300, check=True)
            subprocess.run(download, cwd=folder, timeout=120, check=True)
        for package in Path(folder).glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, Path(folder) / "root"], check=True, timeout=60)
        with contextlib.suppress(OSError):  # somebody else was faster
            (Path(folder) / "root").rename(CACHE)


@contextlib.contextmanager
def sshd(directory: Path) -> Iterator[Sshd]:
    """Skips where it cannot be; in CI that fails."""
    missing = _missing()
    if missing:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"a host with sshd needs {missing}")
    with Sshd(directory) as host:
        yield host


def _missing() -> str:
    if os.geteuid() != 0:
        return "root"
    if not shutil.which("unshare") or not shutil.which("nsenter"):
        return "unshare and nsenter (util-linux)"
    if not (CACHE / "usr/sbin/sshd").exists() and not shutil.which("apt-get"):
        return "Debian's apt-get, to fetch openssh-server"
    return ""
