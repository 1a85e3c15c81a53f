"""Install packages as a separate layer on top of an image.

`python -m herder.machine.host.local.debian.layer IMAGE DIRECTORY APT_SETTINGS PACKAGE…` fills DIRECTORY/root as the
machines' root, in its own mount namespace. The host's apt downloads with the host's settings; maintainer scripts run
inside.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from herder.engine.runner.shim import kernel
from herder.machine.host.local.overlay import overlay_options

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_ENVIRONMENT = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


def apt_settings(inside: Path, how_to_fetch: str) -> str:
    """Return settings for the host's apt to install into `inside`, with that directory's sources and database."""
    return f"""\
Dir "{inside}/";
DPkg::Chroot-Directory "{inside}";
DPkg::Use-Pty "false";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::Languages "none";
{how_to_fetch}"""


def merged(directory: Path) -> Path:
    """Return the mount point of image and layer combined."""
    return directory / "merged"


def fill(image: Path, directory: Path, settings: Path, packages: list[str]) -> None:
    _mount(image, directory)
    environment = {**_ENVIRONMENT, "APT_CONFIG": str(settings)}
    for words in (["update"], ["--yes", "install", *packages]):
        subprocess.run(["apt-get", *words], env=environment, stdin=subprocess.DEVNULL, check=True)
    for fetched in ("var/lib/apt/lists", "var/cache/apt", "var/log/apt"):
        shutil.rmtree(directory / "root" / fetched, ignore_errors=True)


def _mount(image: Path, directory: Path) -> None:
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    inside, work = merged(directory), directory / "work"
    for path in (inside, work):
        path.mkdir()
    options = overlay_options([str(image)], str(directory / "root"), str(work), rootless=not _is_real_root())
    kernel.mount("overlay", str(inside), "overlay", data=options)
    kernel.mount("/proc", str(inside / "proc"), flags=kernel.MS_BIND | kernel.MS_REC)
    kernel.mount("tmpfs", str(inside / "dev"), "tmpfs", kernel.MS_NOSUID, "mode=755")
    for name in _DEVICES:
        (inside / "dev" / name).touch()
        kernel.mount(f"/dev/{name}", str(inside / "dev" / name), flags=kernel.MS_BIND)


def _is_real_root() -> bool:
    """Whether it is root of the initial user namespace."""
    return Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]


if __name__ == "__main__":
    try:
        fill(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"E: {error}")
