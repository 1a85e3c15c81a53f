"""How well containers can be kept apart on this host: found out by trying, the best way first."""

from __future__ import annotations

import os
import pwd
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from herder.engine.runner.attempts import Attempt

LOG_BYTES, LOG_FILES = 10 * 1024 * 1024, 4


@dataclass(frozen=True, slots=True)
class Isolation:
    """Which namespaces of its own a container gets."""

    user: bool = True
    mount: bool = True
    pid: bool = True

    @property
    def side_by_side(self) -> bool:
        """Whether two pods may use the same path for different things."""
        return self.mount

    def describe(self) -> str:
        own = [name for name in ("user", "mount", "pid") if getattr(self, name)]
        if not self.mount:
            return (
                "this host allows neither user namespaces nor mounts: pods run one at a time and volumes appear only "
                "at paths that this user may create; run as root or allow user namespaces "
                "(sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns)"
            )
        return "containers have their own namespaces: " + ", ".join(own)


NONE = Isolation(user=False, mount=False, pid=False)


@dataclass(frozen=True, slots=True)
class HostUser:
    """Who owns a pod's files and processes on the host; None of it can be chosen unless the runner is root."""

    uid: int
    gid: int

    @classmethod
    def named(cls, name: str = "nobody") -> HostUser | None:
        if os.geteuid() != 0:
            return None
        entry = pwd.getpwnam(name) if not name.isdigit() else pwd.getpwuid(int(name))
        return cls(entry.pw_uid, entry.pw_gid)


async def detect(work_dir: Path, user: HostUser | None) -> Isolation:
    """Run `true` in less and less isolation until it works."""
    tries = [Isolation(), Isolation(pid=False)]
    if user is not None:
        tries = [Isolation(), Isolation(user=False), Isolation(pid=False), Isolation(user=False, pid=False)]
    for isolation in tries:
        with tempfile.TemporaryDirectory(dir=work_dir, prefix="try-") as scratch:
            config = container_config(["true"], {"PATH": os.defpath}, isolation=isolation, user=user)
            attempt = await Attempt.start(Path(scratch) / "0", config)
            outcome = await attempt.ended()
            if outcome is not None and outcome.code == 0:
                return isolation
    return NONE


def container_config(
    command: list[str],
    environment: dict[str, str],
    *,
    isolation: Isolation,
    user: HostUser | None,
    seen_as: tuple[int | None, int | None] = (None, None),
    mounts: list[dict[str, Any]] | None = None,
    needs: list[str] | None = None,
    hidden: list[str] | None = None,
    working_dir: str = "/",
    limits: dict[str, int] | None = None,
) -> dict[str, Any]:
    """What the shim is told."""
    identity = {"host_uid": user.uid, "host_gid": user.gid} if user else {}
    chosen = zip(("uid", "gid"), seen_as, strict=True)
    identity |= {key: value for key, value in chosen if value is not None}
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
