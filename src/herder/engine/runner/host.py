"""Node-wide configuration and services that all pods share."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from herder.engine.client.client import Client
from herder.engine.logs import get_logger
from herder.engine.runner.admission import PodAdmission
from herder.engine.runner.concurrency import PodSlots
from herder.engine.runner.isolation import HostUser, Isolation
from herder.engine.runner.kinds import Clock
from herder.engine.runner.pod.environment import Commands
from herder.engine.runner.recorder import Recorder
from herder.engine.runner.shim.beneath import closing, remove_tree

log = get_logger(__name__)

_COMPONENT = re.compile(r"[A-Za-z0-9-]{1,63}")  # path component: what API servers allow as UID and as container name


@dataclass(frozen=True, slots=True)
class Host:
    """Node-wide configuration, passed to every pod."""

    client: Client
    name: str
    address: str
    work_dir: Path
    commands: Commands
    clock: Clock
    recorder: Recorder
    isolation: Isolation
    user: HostUser | None
    slots: PodSlots
    service: Mapping[str, str]  # KUBERNETES_SERVICE_* variables
    admission: PodAdmission
    hidden: tuple[Path, ...] = ()  # host paths that no container may see, regardless of its UID
    host_paths: tuple[Path, ...] = ()  # host paths that pods may mount nevertheless

    def pod_directory(self, uid: str) -> Path:
        return self.work_dir / "pods" / _component(uid)

    def container_directory(self, uid: str, name: str) -> Path:
        return self.pod_directory(uid) / "containers" / _component(name)

    async def remove(self, directory: Path) -> None:
        """Remove a directory below the work directory, in a thread because a busy disk takes milliseconds per entry."""
        await asyncio.to_thread(_remove, directory)


def _component(name: str) -> str:
    if not _COMPONENT.fullmatch(name):
        raise ValueError(f"invalid directory name: {name!r}")
    return name


def _remove(directory: Path) -> None:
    try:
        with closing(os.open(directory.parent, os.O_RDONLY | os.O_DIRECTORY)) as parent:
            remove_tree(parent, directory.name)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("pod directory not removed", directory=str(directory), error=str(error))
