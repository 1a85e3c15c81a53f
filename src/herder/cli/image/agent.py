"""`herder agent`: run the cluster agent, or build its image."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from herder.cli.examples import examples

if TYPE_CHECKING:
    from herder.clusteragent.registry import Login


@click.group(
    epilog=examples(
        "herder agent cluster --server https://manager.example.com --token-file token --kubeconfig cluster.yaml",
        "herder agent image --push registry.example.com/herder/agent:v1",
    )
)
def command() -> None:
    """Run the cluster agent or build its image."""


@command.command(
    "cluster",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
    epilog=examples(
        "herder agent cluster --server https://manager.example.com --token-file token --kubeconfig cluster.yaml"
    ),
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def cluster(arguments: tuple[str, ...]) -> None:
    """Connect a cluster to its manager. Runs in a pod of the cluster, or outside it with --kubeconfig."""
    from herder.clusteragent.__main__ import main

    raise SystemExit(main(arguments))


@command.command(
    "image",
    epilog=examples(
        "herder agent image --push registry.example.com/herder/agent:v1",
        "herder agent image --push registry.example.com/herder/agent:v1 --base docker.io/library/python:3.11-slim",
        "herder agent image --output agent.tar",
    ),
)
@click.option(
    "--base",
    metavar="REGISTRY/NAME:TAG",
    help="Base image with the same Python version. Default: the Python installation of this host.",
)
@click.option("--push", "target", metavar="REGISTRY/NAME:TAG", help="Push the image to this registry.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the image to this archive.")
@click.option("--username", metavar="NAME", help="User name for the registry.")
@click.option(
    "--password-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the registry password.",
)
def image(
    base: str | None, target: str | None, output: Path | None, username: str | None, password_file: Path | None
) -> None:
    """Build the image of the cluster agent. No container engine is needed."""
    from herder.clusteragent.registry import Login, RegistryError

    if (username is None) != (password_file is None):
        raise click.UsageError("--username and --password-file must be used together")
    if (target is None) == (output is None):
        raise click.UsageError("pass exactly one of --push and --output")
    if output is not None and base:
        raise click.UsageError(
            "--base requires --push; an archive is always based on the Python installation of this host"
        )
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
    click.echo(f"To use this image, run: herder up --set agent-image={target}", err=True)


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
    click.echo(f"Wrote {name} to {output}. To serve it from a manager at HOST:PORT, run: herder up {flags}")
