"""Executors and image stagers of the agent that work in directories of a test."""

from __future__ import annotations

from pathlib import Path

import yaml

from herder.agent import config
from herder.agent.apply.executor import NodeExecutor
from herder.agent.core.plan import Instruction
from herder.agent.images.keychain import Keychain
from herder.agent.images.staging import Stager
from herder.agent.log import Log
from tests.support.manager.node_agents import write_private
from tests.support.registry.oci import Image


def new_executor(directory: Path, **settings: str) -> NodeExecutor:
    lines = {"workDirectory": str(directory / "work"), "localEnabled": "true", **settings}
    write_private(directory / "config.yaml", "".join(f"{name}: {value}\n" for name, value in lines.items()))
    return NodeExecutor(config.load(str(directory / "config.yaml")), Log("error"))


def instruction(script: str, **more: object) -> Instruction:
    values: dict[str, object] = {"name": "it", "image": "", "env": [], "save_output": True, "timeout": 0, **more}
    return Instruction(command="sh", args=["-c", script], **values)  # type: ignore[arg-type]


class StagingNode:
    """Stages each image in its own directory, as an instruction of its own plan."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.images, self.own = directory / "images", directory / "own"
        self.images.mkdir()
        self.log: list[str] = []
        self._staged = 0

    def configure_registries(self, **sections: object) -> None:
        (self.directory / "registries.yaml").write_text(yaml.safe_dump(sections))

    def stage(self, name: str, plan: tuple[str, ...] = ()) -> dict[str, str]:
        """Stage an image of a plan that references the images in `plan` (default: only this one); return its files."""
        self._staged += 1
        self.root.mkdir()
        registries = str(self.directory / "registries.yaml")
        stager = Stager(str(self.images), registries, str(self.own), self.log.append, self.keychain())
        stager.begin(plan or (name,))
        stager.stage(name, str(self.root))
        assert not (self.own / "scratch").exists()
        return {str(path.relative_to(self.root)): path.read_text() for path in self.root.rglob("*") if path.is_file()}

    def keychain(self) -> Keychain | None:
        return None

    @property
    def root(self) -> Path:
        """Directory of the most recently staged image."""
        return self.directory / f"root-{self._staged}"


def image_archive(image: Image, layout: str, name: str) -> bytes:
    return image.docker_archive(name) if layout == "docker" else image.oci_archive(name)
