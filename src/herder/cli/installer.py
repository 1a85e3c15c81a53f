"""`herder installer`: the images that machines install Kubernetes from, where the programs come from elsewhere."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from herder.api.rke.names import KUBEADM_INSTALLER
from herder.kubeadm.installer import PROGRAMS, InstallerError, build, tag

if TYPE_CHECKING:
    from herder.clusteragent.registry import Login
    from herder.oci import Image

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def command() -> None:
    """Make images that machines install Kubernetes from."""


def _programs(command: Callable[..., Any]) -> Callable[..., Any]:
    for name in reversed(PROGRAMS):
        command = click.option(f"--{name}", type=FILE, help="This program, if it is not in --from.")(command)
    return command


@command.command()
@click.option("--version", required=True, help="What clusters ask for, such as v1.36.3+kubeadm1.")
@click.option("--from", "directory", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Programs.")
@_programs
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write an archive for machines.")
@click.option("--push", "target", metavar="REGISTRY/NAME[:TAG]", help="Push it to a registry.")
@click.option("--username", help="For the registry.")
@click.option("--password-file", type=FILE, help="Its password.")
def kubeadm(
    version: str,
    directory: Path | None,
    output: Path | None,
    target: str | None,
    username: str | None,
    password_file: Path | None,
    **given: Path | None,
) -> None:
    """Make the installer image of kubeadm clusters from the programs of Kubernetes.

    Programs are taken from --from by their names, or one by one. Nothing is downloaded.
    """
    from herder.clusteragent.registry import Login

    if (output is None) == (target is None):
        raise click.UsageError("one of --output and --push is needed")
    if (username is None) != (password_file is None):
        raise click.UsageError("--username and --password-file go together")
    login = Login(username, password_file.read_text().strip()) if username and password_file else None
    found = {name: given[name.replace("-", "_")] or (directory / name if directory else None) for name in PROGRAMS}
    with tempfile.TemporaryDirectory(prefix="herder-installer-", dir=output.parent if output else None) as scratch:
        try:
            made = build(version, {name: path for name, path in found.items() if path is not None}, Path(scratch))
        except InstallerError as problem:
            raise click.ClickException(str(problem)) from None
        if output is not None:
            _write(made, f"{KUBEADM_INSTALLER}:{tag(version)}", output, Path(scratch))
        if target is not None:
            _push(made, target, tag(version), login)


def _write(made: Image, name: str, output: Path, scratch: Path) -> None:
    from herder.oci import write_archive

    with (scratch / "archive").open("wb") as file:
        write_archive(made, name, file)
    (scratch / "archive").replace(output)
    click.echo(output)
    click.echo("machines that have it in /var/lib/rancher/agent/images install from it", err=True)


def _push(made: Image, target: str, version: str, login: Login | None) -> None:
    from herder.clusteragent.registry import Reference, RegistryError, Repository

    reference = target if ":" in target.rpartition("/")[2] else f"{target}:{version}"

    async def push() -> str:
        async with Repository(Reference.parse(reference), login) as repository:
            return await repository.put_image(made)

    try:
        digest = asyncio.run(push())
    except RegistryError as problem:
        raise click.ClickException(str(problem)) from None
    click.echo(f"{reference}@{digest}")
    registry, _, name = reference.rpartition(":")[0].partition("/")
    if name == KUBEADM_INSTALLER:
        click.echo(f"clusters use it with: herder up --set system-default-registry={registry}", err=True)
