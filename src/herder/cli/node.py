"""The runner, put together from the settings and where things lie."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from herder.api.settings import Settings
from herder.cli.process import wall_clock
from herder.engine.client.client import Client
from herder.engine.runner.environment import Commands
from herder.engine.runner.runner import DEFAULT_NAME, Runner


def commands_from(settings: Settings) -> Commands:
    """`runner-commands` as it is at each look. An image is known by its full name, or by its name without a tag."""

    def command(image: str) -> list[str] | None:
        known: dict[str, list[str]] = msgspec.json.decode(settings.get("runner-commands"))
        return known.get(image) or known.get(untagged(image))

    return command


def untagged(image: str) -> str:
    name = image.partition("@")[0]
    head, colon, tag = name.rpartition(":")
    return head if colon and "/" not in tag else name


def make_runner(
    client: Client,
    settings: Settings,
    *,
    work_dir: Path,
    api_server: str,
    name: str = DEFAULT_NAME,
    client_ca: bytes | None = None,
    hidden: tuple[Path, ...] = (),
) -> Runner:
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
    )
