"""`herder agent`: the program in managed clusters, and its image."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click


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
@click.option("--base", required=True, metavar="REGISTRY/NAME:TAG", help="an image with the same Python as this one")
@click.option("--push", "target", required=True, metavar="REGISTRY/NAME:TAG", help="where the image goes")
@click.option("--username", help="for the registry that is pushed to")
@click.option("--password-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="its password")
def image(base: str, target: str, username: str | None, password_file: Path | None) -> None:
    """Make the agent's image without a container engine, and push it to a registry."""
    from herder.clusteragent.image import push
    from herder.clusteragent.registry import Login, RegistryError

    if (username is None) != (password_file is None):
        raise click.UsageError("--username and --password-file go together")
    login = Login(username, password_file.read_text().strip()) if username and password_file else None
    try:
        digest = asyncio.run(push(base, target, login))
    except RegistryError as problem:
        raise click.ClickException(str(problem)) from None
    click.echo(f"{target}@{digest}")
    click.echo(f"agents use it with: herder up --set agent-image={target}", err=True)
