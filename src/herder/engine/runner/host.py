"""What all pods of this node share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from herder.engine.client.client import Client
from herder.engine.runner.environment import Commands
from herder.engine.runner.isolation import HostUser, Isolation
from herder.engine.runner.kinds import Clock
from herder.engine.runner.recorder import Recorder
from herder.engine.runner.turns import Turns


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
    hidden: tuple[Path, ...] = ()  # what no container may see, whoever it runs as
    host_paths: tuple[Path, ...] = ()  # the directories that a pod may have mounted nevertheless

    def pod_directory(self, uid: str) -> Path:
        return self.work_dir / "pods" / uid
