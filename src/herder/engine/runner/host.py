"""What all pods of this node share."""

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
from herder.engine.runner.environment import Commands
from herder.engine.runner.isolation import HostUser, Isolation
from herder.engine.runner.kinds import Clock
from herder.engine.runner.recorder import Recorder
from herder.engine.runner.shim.beneath import closing, remove_tree
from herder.engine.runner.turns import Turns

log = get_logger(__name__)

_COMPONENT = re.compile(r"[A-Za-z0-9-]{1,63}")  # of a path: what API servers allow as uid, and as name of a container


@dataclass(frozen=True, slots=True)
class Host:
    client: Client
    name: str
    address: str
    work_dir: Path
    commands: Commands
    clock: Clock
    recorder: Recorder
    isolation: Isolation
    user: HostUser | None
    turns: Turns
    service: Mapping[str, str]  # the variables by which a program in a pod finds the API server
    admission: PodAdmission
    hidden: tuple[Path, ...] = ()  # files and directories that no container may see, whatever its uid
    host_paths: tuple[Path, ...] = ()  # the directories that a pod may have mounted nevertheless

    def pod_directory(self, uid: str) -> Path:
        return self.work_dir / "pods" / _component(uid)

    def container_directory(self, uid: str, name: str) -> Path:
        return self.pod_directory(uid) / "containers" / _component(name)

    async def remove(self, directory: Path) -> None:
        """Below the work directory, beside the loop: a busy disk takes milliseconds for each entry."""
        await asyncio.to_thread(_remove, directory)


def _component(name: str) -> str:
    if not _COMPONENT.fullmatch(name):
        raise ValueError(f"not a name of a directory: {name!r}")
    return name


def _remove(directory: Path) -> None:
    try:
        with closing(os.open(directory.parent, os.O_RDONLY | os.O_DIRECTORY)) as parent:
            remove_tree(parent, directory.name)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("directory of a pod not removed", directory=str(directory), error=str(error))
