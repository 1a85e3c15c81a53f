"""Checks of a host that is to run `herder up`. They change nothing; probes use a temporary directory."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import shutil
import socket
import sqlite3
import ssl
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from herder.app.doctor.finding import Finding, failed, ok, warning
from herder.app.doctor.machines import examine_machines
from herder.app.host.busy_port import explain_bind_error
from herder.app.host.process import wall_clock
from herder.engine.client import kubeconfig as kubeconfigs
from herder.engine.store.database import OLDEST_SQLITE

OLDEST_PYTHON = (3, 11)
OLDEST_KERNEL = (5, 12)
MEBIBYTE, GIBIBYTE = 2**20, 2**30
LEAST_DISK, GOOD_DISK = GIBIBYTE, 5 * GIBIBYTE
LEAST_MEMORY, GOOD_MEMORY = 256 * MEBIBYTE, GIBIBYTE
GOOD_OPEN_FILES = 4096
BUILT = datetime(2026, 1, 1, tzinfo=UTC)
_CLOCK_UNSYNCHRONIZED = 5  # TIME_ERROR of adjtimex(2)
_TIMEX_BYTES = 512  # more than struct timex has on any platform


@dataclass(frozen=True, slots=True)
class HostOptions:
    """What is to run on the host."""

    data_dir: Path
    listen: tuple[str, int]
    drivers: frozenset[str] = frozenset({"process"})  # node drivers whose requirements must be met


async def examine_host(options: HostOptions) -> list[Finding]:
    existing = existing_directory(options.data_dir)
    return [
        check_python(sys.version_info[:3], sys.platform),
        check_sqlite(sqlite3.sqlite_version_info),
        check_kernel(platform.release()),
        check_data_directory(options.data_dir, existing),
        check_disk(existing, shutil.disk_usage(existing).free),
        check_memory(_read("/proc/meminfo")),
        check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
        check_port(*options.listen, options.data_dir),
        check_clock(wall_clock(), clock_is_synchronized()),
        check_programs(shutil.which),
        *await examine_machines(options.drivers),
    ]


def check_python(version: tuple[int, ...], system: str) -> Finding:
    found = ".".join(map(str, version))
    if version < OLDEST_PYTHON or system != "linux":
        return failed("python", f"Python {found} on {system}", "use Python 3.11 or newer on Linux")
    return ok("python", f"Python {found}")


def check_sqlite(version: tuple[int, ...]) -> Finding:
    found, oldest = (".".join(map(str, each)) for each in (version, OLDEST_SQLITE))
    if version < OLDEST_SQLITE:
        return failed("sqlite", f"SQLite {found} is too old", f"use a Python with SQLite {oldest} or newer")
    return ok("sqlite", f"SQLite {found}, {ssl.OPENSSL_VERSION}")


def check_kernel(release: str) -> Finding:
    numbers = re.match(r"(\d+)\.(\d+)", release)
    if numbers is None or tuple(map(int, numbers.groups())) < OLDEST_KERNEL:
        oldest = ".".join(map(str, OLDEST_KERNEL))
        advice = f"upgrade to Linux {oldest} or newer, or create machines elsewhere"
        return warning("kernel", f"Linux {release} cannot run process machines in user namespaces", advice)
    return ok("kernel", f"Linux {release}")


def existing_directory(directory: Path) -> Path:
    """The directory, or the nearest one above it that exists."""
    return next(each for each in (directory, *directory.parents) if each.is_dir())


def check_data_directory(directory: Path, existing: Path) -> Finding:
    name = "data directory"
    if not os.access(existing, os.W_OK | os.X_OK):
        advice = "pass --data-dir, or run as root or as the owner"
        return failed(name, f"{existing} is not writable for this user", advice)
    if existing != directory:
        return ok(name, f"{directory} can be created")
    if existing.stat().st_uid != os.geteuid():
        advice = f"run as its owner, or change it: chown -R {os.geteuid()} {directory}"
        return failed(name, f"{directory} belongs to another user, UID {existing.stat().st_uid}", advice)
    return ok(name, f"{directory} is writable")


def check_disk(directory: Path, free: int) -> Finding:
    message = f"{free / GIBIBYTE:.1f} GiB free at {directory}"
    if free < LEAST_DISK:
        return failed("disk", message, "free at least 1 GiB, or pass another --data-dir")
    if free < GOOD_DISK:
        return warning("disk", message, "5 GiB leave room for backups, image archives and local machines")
    return ok("disk", message)


def check_memory(meminfo: str) -> Finding:
    found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)
    if found is None:
        return warning("memory", "cannot read MemAvailable in /proc/meminfo", "mount /proc")
    available = int(found[1]) * 1024
    message = f"{available / GIBIBYTE:.1f} GiB available"
    if available < LEAST_MEMORY:
        return failed("memory", message, "the manager needs 256 MiB; each machine needs more")
    if available < GOOD_MEMORY:
        return warning("memory", message, "1 GiB leaves room for a few process machines")
    return ok("memory", message)


def check_open_files(hard_limit: int) -> Finding:
    if hard_limit != resource.RLIM_INFINITY and hard_limit < GOOD_OPEN_FILES:
        advice = f"raise it to {GOOD_OPEN_FILES} or more, with LimitNOFILE= of the unit or ulimit -Hn"
        return warning("open files", f"the hard limit is {hard_limit}: enough for a few machines and agents", advice)
    return ok("open files", "no limit" if hard_limit == resource.RLIM_INFINITY else f"hard limit {hard_limit}")


def check_port(host: str, port: int, data_dir: Path) -> Finding:
    """Bind the address for a moment, as the server does."""
    where = f"{host}:{port}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if _is_served_from(data_dir, port):
            return ok("port", f"{where} is used by the manager that runs on {data_dir}")
        message, _, advice = explain_bind_error(error, host, port).partition("; ")
        return failed("port", message, advice)
    return ok("port", f"{where} is free")


def _is_served_from(data_dir: Path, port: int) -> bool:
    with suppress(kubeconfigs.KubeconfigError):
        return kubeconfigs.load(data_dir / "kubeconfig").server.endswith(f":{port}")
    return False


def check_clock(now: datetime, synchronized: bool | None) -> Finding:
    shown = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    if now < BUILT:
        return failed("clock", f"{shown} is before this version was built", "set the clock; certificates depend on it")
    if synchronized is False:
        advice = "start systemd-timesyncd, chrony or the time service of the hypervisor"
        return warning("clock", f"{shown}, and the kernel reports that it is not synchronized", advice)
    return ok("clock", f"{shown}, synchronized" if synchronized else shown)


def clock_is_synchronized() -> bool | None:
    """Ask the kernel; None if it does not say."""
    with suppress(OSError, AttributeError):
        state = int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))
        return None if state < 0 else state != _CLOCK_UNSYNCHRONIZED
    return None


PROGRAMS: Mapping[str, str] = {"ssh": "herder ssh", "scp": "herder scp"}


def check_programs(which: Callable[[str], str | None]) -> Finding:
    if missing := [name for name in PROGRAMS if which(name) is None]:
        uses = ", ".join(PROGRAMS[name] for name in missing)
        advice = "install the package openssh-client"
        return warning("programs", f"{', '.join(missing)} not found; {uses} will not work", advice)
    return ok("programs", f"{', '.join(PROGRAMS)} found")


def _read(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text()
    return ""
