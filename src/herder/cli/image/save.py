"""`herder image save`: write an image of a registry to an archive."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from herder.cli.examples import examples
from herder.oci import PROCESSORS, processor

if TYPE_CHECKING:
    from herder.clusteragent.registry import Login

EXAMPLES = examples(
    "herder image save docker.io/rancher/mirrored-pause:3.6 --output images/pause.tar",
    "herder image save registry.example.com/team/app:v1 --architecture arm64 --output images/app.tar",
)


@click.group(epilog=EXAMPLES)
def command() -> None:
    """Write images to archives, which a manager can serve to machines."""


@command.command(epilog=EXAMPLES)
@click.argument("image", metavar="REGISTRY/NAME:TAG")
@click.option(
    "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="Write the image to this archive."
)
@click.option(
    "--architecture",
    type=click.Choice(sorted(PROCESSORS.values())),
    help="Processor architecture of the machines. Default: that of this host.",
)
@click.option("--username", metavar="NAME", help="User name for the registry.")
@click.option(
    "--password-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the registry password.",
)
def save(image: str, output: Path, architecture: str | None, username: str | None, password_file: Path | None) -> None:
    """Download an image from a registry and write it to an archive. No container engine is needed.

    A manager serves the archives in the directory of its setting image-archives. Machines also find archives in
    /var/lib/rancher/agent/images.
    """
    from herder.clusteragent.registry import Login, RegistryError

    if (username is None) != (password_file is None):
        raise click.UsageError("--username and --password-file must be used together")
    login = Login(username, password_file.read_text().strip()) if username and password_file else None
    if not output.absolute().parent.is_dir():
        raise click.BadParameter(f"directory {output.absolute().parent} does not exist", param_hint="--output")
    try:
        asyncio.run(_save(image, output, architecture or processor(), login))
    except RegistryError as problem:
        raise click.ClickException(str(problem)) from None
    click.echo(output)
    click.echo(f"To serve it from a manager, run: herder up --set image-archives={output.absolute().parent}", err=True)


async def _save(image: str, output: Path, architecture: str, login: Login | None) -> None:
    from herder.clusteragent.archive import check_tagged, download
    from herder.clusteragent.registry import Repository
    from herder.oci import write_archive

    reference = check_tagged(image)
    with tempfile.TemporaryDirectory(prefix="herder-image-", dir=output.absolute().parent) as scratch:
        async with Repository(reference, login) as source:
            downloaded = await download(source, Path(scratch), architecture)
        written = Path(scratch) / "archive"
        with written.open("wb") as file:
            write_archive(downloaded, image, file, architecture)
        written.replace(output)  # a manager may be serving the directory
