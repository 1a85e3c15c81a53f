"""`herder agent`: the program in managed clusters, and its image."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from herder.clusteragent.registry import Login


@click.group()
def command() -> None:
    """The agent of managed clusters: run it, or make its image."""


@command.command(
    "cluster", context_settings={"ignore_unknown_options": True, "help_option_names": []}, add_help_option=False
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def cluster(arguments: tuple[str, ...]) -> None:
    """Connect a cluster to its manager, from a pod or beside it (--help for its flags)."""
    from herder.clusteragent.__main__ import main

    raise SystemExit(main(arguments))


@command.command("image")
@click.option("--base", metavar="REGISTRY/NAME:TAG", help="An image with the same Python as this one; else this one's.")
@click.option("--push", "target", metavar="REGISTRY/NAME:TAG", help="Push it to a registry.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write an archive.")
@click.option("--username", help="For the registry that is pushed to.")
@click.option("--password-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Its password.")
def image(
    base: str | None, target: str | None, output: Path | None, username: str | None, password_file: Path | None
) -> None:
    """Make the agent's image without a container engine."""
    from herder.clusteragent.registry import Login, RegistryError

    if (username is None) != (password_file is None):
        raise click.UsageError("--username and --password-file go together")
    if (target is None) == (output is None):
        raise click.UsageError("say where it goes: --push or --output")
    if output is not None and base:
        raise click.UsageError("--base: only with --push; an archive is made on the Python of this installation")
    login = Login(username, password_file.read_text().strip()) if username and password_file else None
    if output is not None:
        _write(output)
        return
    assert target is not None
    try:
        digest = asyncio.run(_pushed(base, target, login))
    except RegistryError as problem:
        raise click.ClickException(str(problem)) from None
    click.echo(f"{target}@{digest}")
    click.echo(f"agents use it with: herder up --set agent-image={target}", err=True)


async def _pushed(base: str | None, target: str, login: Login | None) -> str:
    from herder.clusteragent.image import push, whole
    from herder.clusteragent.registry import Reference, Repository

    if base:
        return await push(base, target, login)
    made = await asyncio.to_thread(whole)
    async with Repository(Reference.parse(target), login) as repository:
        return await repository.put_image(made)


def _write(output: Path) -> None:
    from herder.api.settings import AGENT_IMAGE, DEFINITIONS
    from herder.clusteragent.image import whole
    from herder.oci import write_archive

    name = DEFINITIONS[AGENT_IMAGE].default
    with output.open("wb") as archive:
        write_archive(whole(), name, archive)
    flags = f"--set image-archives={output.absolute().parent} --set agent-image=HOST:PORT/{name}"
    click.echo(f"{name} in {output}; a manager that clusters reach at HOST:PORT serves it with: herder up {flags}")
