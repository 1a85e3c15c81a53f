"""A host with a real OpenSSH server for one test: in its own network, mount and UTS namespaces, so that changes do not
affect the real host, and accessible on a loopback port.

Requires root, for the namespaces and for sshd. Debian's packages are unpacked into a cache, not installed.
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
INSIDE = Path("/run/machine")  # the host's own directory, as mounted inside
USER = "friend"  # not root: sudo requires a password

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

# Every directory that a machine's setup writes to is private to the host.
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
    # A minimal sudo: root is allowed, other users would have to enter a password.
    "sudo": """while case "$1" in -*) ;; *) false ;; esac; do shift; done
[ "$(id -u)" = 0 ] && exec "$@"
echo "sudo: a password is required" >&2; exit 1
""",
    # rancher-machine installs packages on every host.
    "apt-get": "exit 0\n",
    "shutdown": f'echo "$@" >>{INSIDE}/shutdowns\n',
}


class Sshd:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = "127.0.0.1"
        self.key = directory / "client_key"  # accepted for root and USER
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
            stdin=subprocess.PIPE,  # closes when the test process dies, which ends the host, too
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._host.stdout is not None
        assert self._host.stdout.readline() == b"ready\n", "the host's namespaces could not be created"
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
        """Close the port."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def without_sftp(self) -> None:
        """Disable SFTP for further connections, as on hosts without sftp-server."""
        config = self.directory / "sshd_config"
        config.write_text("".join(line for line in _CONFIG.splitlines(keepends=True) if "sftp" not in line))

    def new_host_key(self) -> None:
        """Replace the host key, as a reinstallation does."""
        for suffix in ("", ".pub"):
            self.directory.joinpath(f"host_key{suffix}").unlink(missing_ok=True)
        _keygen(self.directory / "host_key")

    def shell(self, command: str) -> str:
        """Run a command on the host without SSH; return its output."""
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
                        [*self._enter(), sshd_program(), "-i", "-e", "-f", INSIDE / "sshd_config"],
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
        users = f"root:*:0:0::/root:/bin/sh\n{USER}:*:4321:4321::/tmp:/bin/sh\nsshd:*:4322:4322::/run/sshd:/bin/false\n"
        (etc / "passwd").write_text(users)
        (etc / "group").write_text(f"root:*:0:\n{USER}:*:4321:\nsshd:*:4322:\n")
        (etc / "hostname").write_text("before\n")
        (etc / "hosts").write_text("127.0.0.1 localhost\n")


def _keygen(path: Path) -> None:
    private, public = new_key_pair()
    path.touch(mode=0o600)
    path.write_bytes(private)
    path.with_suffix(".pub").write_bytes(public)


@functools.cache
def sshd_program() -> Path:
    """The path of sshd, downloaded once."""
    program = CACHE / "usr/sbin/sshd"
    if not program.exists():
        _fetch()
    return program


def _fetch() -> None:
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE.parent) as folder:
        wanted = [name for name in PACKAGES if name == "openssh-server" or not ctypes.util.find_library(name[3:-1])]
        download = ["apt-get", "-qq", "download", *wanted]
        if subprocess.run(download, cwd=folder, timeout=120, check=False).returncode:  # there are no package lists yet
            subprocess.run(["apt-get", "-qq", "update"], timeout=300, check=True)
            subprocess.run(download, cwd=folder, timeout=120, check=True)
        for package in Path(folder).glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, Path(folder) / "root"], check=True, timeout=60)
        with contextlib.suppress(OSError):  # another process was faster
            (Path(folder) / "root").rename(CACHE)


@contextlib.contextmanager
def sshd(directory: Path) -> Iterator[Sshd]:
    """A host with sshd; skips the test if that is not possible, and fails it in CI."""
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
