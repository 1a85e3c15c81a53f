"""The root file system of a machine's processes: its own writable directories, and the host's read-only."""

from __future__ import annotations

import os
import stat

from herder.engine.runner.shim import kernel
from herder.machine.host.process.kernel import make_read_only
from herder.machine.host.process.tree import HOST, LINKED, LOCAL, OWN

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "ptmx": "pts/ptmx",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
_TMPFS = kernel.MS_NODEV | kernel.MS_NOSUID


def enter(directory: str, hidden: list[str], owner: list[int] | None) -> None:
    """Set up the root in a new mount namespace; `owner` is set while it is owned by the host's root."""
    root = f"{directory}/root"
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    _bind(root, root)
    # Binding a directory above the new root must not copy the new root into itself.
    kernel.mount("none", root, flags=kernel.MS_UNBINDABLE)
    with os.scandir("/") as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name not in OWN]
    for name in names:
        _show(f"/{name}", f"{root}/{name}")
    for path in LINKED:
        _show(f"/{path}", f"{root}{HOST}/{path}")
    _hide(root, hidden)
    if _is_directory(f"{root}/usr/local"):
        _bind(f"{directory}/{LOCAL}", f"{root}/usr/local")
    _bind("/proc", f"{root}/proc")  # the kernel requires a visible procfs to mount another
    _devices(f"{root}/dev", owner)
    kernel.pivot_into(root)


def populate(owner: list[int] | None) -> None:
    """Mount what belongs to its own namespaces, called by PID 1; `owner` as for `enter`."""
    kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    kernel.mount("devpts", "/dev/pts", "devpts", kernel.MS_NOSUID | kernel.MS_NOEXEC, "newinstance,ptmxmode=0666")
    kernel.mount("tmpfs", "/dev/shm", "tmpfs", _TMPFS, "mode=1777")  # noqa: S108 - the machine's, not ours
    kernel.mount("tmpfs", "/run", "tmpfs", _TMPFS, f"mode=755{_owned(owner)}")
    kernel.mount("tmpfs", "/tmp", "tmpfs", _TMPFS, "mode=1777")  # noqa: S108


def _show(source: str, target: str) -> None:
    """Skipped if the machine put something else in its place."""
    if _is_directory(source) and _is_directory(target):
        _bind(source, target)
        make_read_only(target)


def _hide(root: str, hidden: list[str]) -> None:
    for shown in (each for path in hidden for each in _shown_at(path)):
        if _is_directory(root + shown):
            kernel.mount("tmpfs", root + shown, "tmpfs", kernel.MS_RDONLY, "mode=000,size=4k")


def _shown_at(path: str) -> list[str]:
    """Return where a machine sees a host directory: at its own path unless the machine has its own, and below `HOST` if
    linked.
    """
    top = path.split("/")[1]
    places = [] if top in OWN else [path]
    is_linked = any(f"{path}/".startswith(f"/{each}/") for each in LINKED)
    return [*places, HOST + path] if is_linked else places


def _devices(dev: str, owner: list[int] | None) -> None:
    kernel.mount("tmpfs", dev, "tmpfs", kernel.MS_NOSUID, f"mode=755{_owned(owner)}")
    for name in _DEVICES:
        if os.path.exists(f"/dev/{name}"):
            os.close(os.open(f"{dev}/{name}", os.O_WRONLY | os.O_CREAT, 0o644))
            _bind(f"/dev/{name}", f"{dev}/{name}")
    for name, target in _DEVICE_LINKS.items():
        os.symlink(target, f"{dev}/{name}")
    os.mkdir(f"{dev}/pts")
    os.mkdir(f"{dev}/shm")


def _owned(owner: list[int] | None) -> str:
    return f",uid={owner[0]},gid={owner[1]}" if owner else ""


def _bind(source: str, target: str) -> None:
    kernel.mount(source, target, flags=kernel.MS_BIND | kernel.MS_REC)


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False
