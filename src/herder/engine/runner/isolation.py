"""Container isolation: detect by trial which namespaces this host supports, strongest first."""

from __future__ import annotations

import contextlib
import os
import pwd
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from herder.engine.runner.pod.attempt import Attempt

LOG_BYTES, LOG_FILES = 10 * 1024 * 1024, 4


UNAVAILABLE = (
    "this host allows neither user namespaces nor mounts, so pods could read the files of the manager; "
    "run as root or allow user namespaces "
    "(sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns)"
)


@dataclass(frozen=True, slots=True)
class Isolation:
    """Namespaces of a container besides its mount namespace, which every container has."""

    user: bool = True
    pid: bool = True

    def describe(self) -> str:
        own = ["mount", *(name for name in ("user", "pid") if getattr(self, name))]
        return "containers have their own namespaces: " + ", ".join(own)


@dataclass(frozen=True, slots=True)
class HostUser:
    """Host user of a pod's files and processes. Only root can choose one; otherwise pods run with the runner's UID."""

    uid: int
    gid: int

    @classmethod
    def named(cls, name: str = "nobody") -> HostUser | None:
        if os.geteuid() != 0:
            return None
        entry = pwd.getpwnam(name) if not name.isdigit() else pwd.getpwuid(int(name))
        return cls(entry.pw_uid, entry.pw_gid)


async def detect(work_dir: Path, user: HostUser | None) -> Isolation | None:
    """Run `true` with decreasing isolation until it works; return None if no safe variant works.

    Pods with the runner's own UID need every namespace: without them they could read everything that the runner can
    read.
    """
    tries = [Isolation()]
    if user is not None:
        tries += [Isolation(user=False), Isolation(pid=False), Isolation(user=False, pid=False)]
    for isolation in tries:
        with tempfile.TemporaryDirectory(dir=work_dir, prefix="try-") as scratch:
            config = container_config(["true"], {"PATH": os.defpath}, isolation=isolation, user=user)
            attempt = await Attempt.start(Path(scratch) / "0", config)
            outcome = await attempt.ended()
            if outcome is not None and outcome.code == 0:
                return isolation
    return None


# Sockets that supplementary groups, which a user namespace keeps, would give access to.
_SOCKETS = ("/run/containerd", "/run/crio", "/run/dbus", "/run/docker.sock", "/run/podman", "/run/user")
_SYSTEM_HOMES = frozenset({"/", "/bin", "/dev", "/etc", "/proc", "/sbin", "/usr", "/usr/bin", "/usr/sbin", "/var"})


def private_paths() -> tuple[Path, ...]:
    """Return host paths that no pod may see: home directories, session sockets, and the runner's service account
    token."""
    homes = {os.environ.get("HOME", "")}
    with contextlib.suppress(KeyError):
        homes.add(pwd.getpwuid(os.geteuid()).pw_dir)
    own = {home for home in homes if os.path.isabs(home) and os.path.normpath(home) not in _SYSTEM_HOMES}
    return tuple(map(Path, sorted(own | {"/home", "/root", "/run/secrets", "/var/run/secrets", *_SOCKETS})))


def container_config(
    command: list[str],
    environment: dict[str, str],
    *,
    isolation: Isolation,
    user: HostUser | None,
    container_ids: tuple[int | None, int | None] = (None, None),
    mounts: list[dict[str, Any]] | None = None,
    needs: list[str] | None = None,
    hidden: list[str] | None = None,
    working_dir: str = "/",
    limits: dict[str, int] | None = None,
) -> dict[str, Any]:
    """Build the configuration for the shim."""
    identity = {"host_uid": user.uid, "host_gid": user.gid} if user else {}
    ids = zip(("uid", "gid"), container_ids, strict=True)
    identity |= {key: value for key, value in ids if value is not None}
    return {
        "command": command,
        "environment": environment,
        "working_dir": working_dir,
        "isolation": asdict(isolation),
        "user": identity,
        "mounts": mounts or [],
        "needs": needs or [],
        "hidden": hidden or [],
        "limits": limits or {},
        "log_bytes": LOG_BYTES,
        "log_files": LOG_FILES,
    }
