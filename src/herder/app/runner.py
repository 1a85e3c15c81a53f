"""Create the Job runner from settings and paths."""

from __future__ import annotations

import base64
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

import herder
from herder.api.capi.kinds import SECRET
from herder.api.machines import hosts
from herder.api.settings import MACHINE_IMAGE, RANCHER_MACHINE_IMAGE, RANCHER_MACHINE_PATH, Settings
from herder.app.host.process import wall_clock
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound
from herder.engine.runner.pod.environment import Commands, Program
from herder.engine.runner.pod.sources import NotReady
from herder.engine.runner.runner import DEFAULT_NAME, Runner
from herder.machine import rancher


def commands_from(settings: Settings) -> Commands:
    """Maps images to programs by the current settings; an image matches by its full name or without tag."""

    def program(image: str) -> Program | None:
        chosen: dict[str, list[str]] = msgspec.json.decode(settings.get("runner-commands"))
        name = untagged(image)
        if command := chosen.get(image) or chosen.get(name):
            return Program(command)
        if name == untagged(settings.get(MACHINE_IMAGE)):
            return machine_program()
        if name == untagged(settings.get(RANCHER_MACHINE_IMAGE)):
            return rancher_machine_program(settings.get(RANCHER_MACHINE_PATH))
        return None

    return program


def untagged(image: str) -> str:
    name = image.partition("@")[0]
    head, colon, tag = name.rpartition(":")
    return head if colon and "/" not in tag else name


def machine_program(
    *arguments: str, needs: tuple[str, ...] = (), environment: Mapping[str, str] | None = None
) -> Program:
    """The machine CLI of this installation. It writes no bytecode and ignores user site-packages."""
    sources = str(Path(herder.__file__).parents[1])
    return Program(
        [sys.executable, "-B", "-P", "-s", "-m", "herder.machine.entrypoint", *arguments],
        needs=(sys.base_prefix, sys.prefix, sources, *needs),
        environment={"PYTHONPATH": sources, **(environment or {})},
    )


def rancher_machine_program(path: str) -> Program:
    found = shutil.which(path)
    if found is None:
        raise NotReady(
            "ErrImagePull",
            f'program "{path}" not found on this host; install {rancher.PROGRAM}, '
            f'or set the setting "{RANCHER_MACHINE_PATH}" to its path',
        )
    program_path = os.path.realpath(found)
    return machine_program(
        "--program", rancher.PROGRAM, needs=(program_path,), environment={rancher.PROGRAM_VARIABLE: program_path}
    )


def create_runner(
    client: Client,
    settings: Settings,
    *,
    work_dir: Path,
    api_server: str,
    name: str = DEFAULT_NAME,
    client_ca: bytes | None = None,
    hidden: tuple[Path, ...] = (),
    host_paths: tuple[Path, ...] = (),
    all_pods: bool = False,
) -> Runner:
    """`host_paths` are the directories of this host that pods may mount."""

    async def approval_key() -> bytes | None:
        """Read for each pod, so that the runner and the controllers have the same key, whichever host published it."""
        try:
            secret = await client.get(SECRET.resource, hosts.HOST_SECRET, namespace=hosts.HOST_NAMESPACE)
        except NotFound:
            return None
        encoded = (secret.get("data") or {}).get(hosts.HOST_KEY)
        return hosts.approval_key(base64.b64decode(encoded)) if encoded else None

    return Runner(
        client,
        name=name,
        work_dir=work_dir,
        commands=commands_from(settings),
        clock=wall_clock,
        entropy=os.urandom,
        api_server=api_server,
        client_ca=client_ca,
        hidden=hidden,
        host_paths=host_paths,
        approval_key=approval_key,
        all_pods=all_pods,
    )
