"""The images of the last commit, built from packages and wheels that were made again on this host."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from herder.machine.host.local import image as machine_image
from tests.packages.images import repacked
from tools.images import __main__ as program
from tools.images import debian, wheels


@dataclass(frozen=True)
class Sources:
    """A mirror and an index with repacked inputs, and their pins."""

    mirror: str
    pins: list[debian.Pin]
    shelf: Path
    requirements: Path

    def build(self, output: Path, cache: Path, *more: str) -> None:
        """Run the program in this process, with an empty cache or a filled one."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(debian, "pins", lambda: self.pins)
            patch.setattr(program, "REQUIREMENTS", (self.requirements,))
            patch.setenv("PIP_NO_INDEX", "1")
            patch.setenv("PIP_FIND_LINKS", str(self.shelf))
            program.main(["--output", str(output), "--cache", str(cache), "--mirror", self.mirror, *more])


class _Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def mirror(directory: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Silent, directory=str(directory)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sources]:
    system = machine_image.location()
    if not system.is_dir():
        pytest.skip("the image of local machines is not built")
    directory, shelf = tmp_path_factory.mktemp("mirror"), tmp_path_factory.mktemp("shelf")
    (directory / "pool" / "main").mkdir(parents=True)
    pins = repacked.packages(system, [pin.name for pin in debian.pins()], directory / "pool" / "main")
    wanted = [each for file in program.REQUIREMENTS for each in wheels.requirements(file.read_text())]
    (shelf / "requirements.txt").write_text(repacked.wheels(wanted, shelf))
    with mirror(directory) as url:
        yield Sources(url, pins, shelf, shelf / "requirements.txt")


@dataclass(frozen=True)
class Unpacked:
    """The root directory of an image, entered as an unprivileged user who can write to volumes only."""

    root: Path

    def run(
        self, *command: str, volumes: Sequence[str] = ("tmp",), user: int = 65532
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "herder.machine.host.local.rootless"] * (os.geteuid() != 0)
            + ["unshare", "--mount", "--pid", "--ipc", "--net", "--fork", "sh", "-euc", _ENTER, "sh"]
            + [str(self.root), str(user), " ".join(volumes), *command],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )


_ENTER = """
root=$1 user=$2 volumes=$3; shift 3
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs none "$root/dev"
touch "$root/dev/null"
mount --bind /dev/null "$root/dev/null"
for volume in $volumes; do mount -t tmpfs -o mode=1777 none "$root/$volume"; done
mount -o remount,bind,ro "$root"
ip link set lo up
exec env -i PATH=/usr/local/bin:/usr/bin LANG=C.UTF-8 HOME=/tmp HERDER_DATA_DIR=/data \
    /usr/bin/setpriv --no-new-privs /usr/sbin/chroot --userspec="$user:$user" "$root" "$@"
"""
