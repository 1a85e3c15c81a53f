"""cgroups of a machine: its limits, and the set of all its processes.

A machine has two levels: the outer cgroup has the limits, the inner one is the root that the machine sees, so it cannot
change its limits. Both cgroup versions are supported.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from herder.machine.errors import PreCreateFailed

PERIOD = 100_000  # microseconds
_INNER = "machine"
_ASIDE = "herder-daemon"
_TIMEOUT = 10.0
_NO_LIMITS = "this host does not support CPU and memory limits"
_WITHOUT_LIMITS = "omit --local-cpus and --local-memory, or run herder with the cgroup controllers cpu and memory"
_CONTROLLERS = ("cpu", "cpuset", "memory", "pids", "io", "hugetlb")


@dataclass(frozen=True, slots=True)
class Tree:
    """A mounted hierarchy: `options` are its mount options ("" for v2), `base` is where we may create cgroups.

    On hosts with v1, the v2 hierarchy has no controllers, but systemd uses it: without a cgroup there, a machine would
    be in that of the host.
    """

    name: str
    options: str
    base: Path

    @property
    def controllers(self) -> list[str]:
        return self.options.split(",")


def trees() -> list[Tree]:
    """Return the hierarchies of this host. Root uses the top, others their delegated cgroup."""
    own = dict(_own_groups())
    found: list[Tree] = []
    unified = None
    with open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            before, _, after = line.partition(" - ")
            kind, _, options = after.split()
            place = Path(before.split()[4])
            if kind == "cgroup":
                name = next((key for key in own if key and set(key.split(",")) <= set(options.split(","))), "")
                if name and all(tree.options != _mount_options(name) for tree in found):
                    found.append(Tree(name.removeprefix("name="), _mount_options(name), _base(place, own[name])))
            elif kind == "cgroup2":
                unified = Tree("unified", "", _base(place, own.get("", "/")))
    return [*found, unified] if unified is not None else found


def _own_groups() -> Iterator[tuple[str, str]]:
    with open("/proc/self/cgroup") as lines:
        for line in lines:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            yield controllers, path


def _mount_options(name: str) -> str:
    return f"none,{name}" if name.startswith("name=") else name


def _base(place: Path, own: str) -> Path:
    delegated = own.removesuffix(f"/{_ASIDE}").lstrip("/")
    return (place if os.geteuid() == 0 else place / delegated) / "herder"


class Groups:
    """The cgroups of one machine; `name` is unique on this host."""

    def __init__(self, name: str) -> None:
        self.trees = trees()
        self.name = name

    def outer(self) -> list[Path]:
        return [tree.base / self.name for tree in self.trees]

    def inner(self) -> list[Path]:
        return [path / _INNER for path in self.outer()]

    def make(self, cpus: float, memory_bytes: int) -> None:
        """Create the cgroups with these limits; 0 means none."""
        version_2_alone = [tree.options for tree in self.trees] == [""]
        for tree, outer in zip(self.trees, self.outer(), strict=True):
            if version_2_alone:
                _delegate(tree.base.parent)
                tree.base.mkdir(exist_ok=True)
                _delegate(tree.base)
            for path in (tree.base, outer, outer / _INNER):
                path.mkdir(exist_ok=True)
                if "cpuset" in tree.controllers:
                    _inherit_cpuset(path)
            if version_2_alone:
                _delegate(outer)
        limits = _limits(cpus, memory_bytes)
        files = [(outer / name, value) for outer in self.outer() for name, value in limits if (outer / name).exists()]
        if 2 * len(files) != len(limits):
            raise PreCreateFailed(_NO_LIMITS, _WITHOUT_LIMITS)
        for file, value in files:
            file.write_text(value)

    def check(self, *, limits: bool) -> None:
        """Raise `PreCreateFailed` if cgroups cannot be created, which systemd requires, or limits are not supported."""
        if not self.trees:
            raise PreCreateFailed("cgroups are not mounted on this host", "mount them at /sys/fs/cgroup")
        for tree in self.trees:
            place = tree.base if tree.base.exists() else tree.base.parent
            if not os.access(place, os.W_OK):
                raise PreCreateFailed(
                    f"{place} is not owned by this user, but local machines require cgroups",
                    "run herder as root, or in a delegated scope: systemd-run --user --scope -p Delegate=yes herder …",
                )

        offered = {name for tree in self.trees for name in tree.controllers}
        for tree in self.trees:
            if not tree.options:
                offered |= set((tree.base.parent / "cgroup.controllers").read_text().split())
        if limits and not {"cpu", "memory"} <= offered:
            raise PreCreateFailed(_NO_LIMITS, _WITHOUT_LIMITS)

    def processes(self) -> set[int]:
        return {
            pid
            for outer in self.outer()
            for directory, _, _ in os.walk(outer)
            for pid in _numbers(Path(directory) / "cgroup.procs")
        }

    async def kill(self) -> None:
        """Kill until no process is left."""
        deadline = asyncio.get_running_loop().time() + _TIMEOUT
        while pids := self.processes():
            if asyncio.get_running_loop().time() > deadline:
                raise OSError(f"processes of {self.name} are still running after SIGKILL: {sorted(pids)}")
            await asyncio.to_thread(_kill_and_wait, pids, self.name)

    async def remove(self) -> None:
        """Remove the cgroups after `kill`; the kernel releases them shortly after the last process."""
        deadline = asyncio.get_running_loop().time() + _TIMEOUT
        for outer in self.outer():
            while outer.exists() and not _remove_tree(outer):
                if asyncio.get_running_loop().time() > deadline:
                    raise OSError(f"the control group {outer} cannot be removed because it is busy")
                await asyncio.sleep(0.01)
            with contextlib.suppress(OSError):  # still used by others
                outer.parent.rmdir()


def _delegate(group: Path) -> None:
    """v2: enable the available controllers for children."""
    for controller in _CONTROLLERS:
        try:
            (group / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError as error:
            if error.errno == errno.EBUSY:
                _move_aside(group)
                (group / "cgroup.subtree_control").write_text(f"+{controller}")


def _move_aside(group: Path) -> None:
    """v2 also requires that the cgroup has no processes: move this daemon and its parent into a sibling."""
    (group / _ASIDE).mkdir(exist_ok=True)
    for pid in _numbers(group / "cgroup.procs"):
        with contextlib.suppress(ProcessLookupError):
            (group / _ASIDE / "cgroup.procs").write_text(str(pid))


def _inherit_cpuset(group: Path) -> None:
    """v1: a new cpuset is empty until it is configured."""
    for file in ("cpuset.cpus", "cpuset.mems"):
        if not (group / file).read_text().strip():
            (group / file).write_text((group.parent / file).read_text())


def _limits(cpus: float, memory_bytes: int) -> list[tuple[str, str]]:
    """Return files and values of the limits, for both versions."""
    quota = int(cpus * PERIOD)
    of_cpu = [("cpu.cfs_quota_us", f"{quota}"), ("cpu.max", f"{quota} {PERIOD}")]
    of_memory = [("memory.limit_in_bytes", f"{memory_bytes}"), ("memory.max", f"{memory_bytes}")]
    return (of_cpu if cpus else []) + (of_memory if memory_bytes else [])


def _numbers(file: Path) -> list[int]:
    try:
        return [int(line) for line in file.read_text().split()]
    except OSError:
        return []


def _kill_and_wait(pids: set[int], name: str) -> None:
    opened = []
    try:
        for pid in pids:
            with contextlib.suppress(OSError):
                opened.append(os.pidfd_open(pid))
                # Check again now that the PID cannot be reused.
                if f"/{name}/" in Path(f"/proc/{pid}/cgroup").read_text():
                    signal.pidfd_send_signal(opened[-1], signal.SIGKILL)
                else:
                    os.close(opened.pop())
        for descriptor in opened:
            select.select([descriptor], [], [], _TIMEOUT)
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _remove_tree(group: Path) -> bool:
    try:
        for directory, _, _ in os.walk(group, topdown=False):
            os.rmdir(directory)
    except OSError:
        return False
    return True
