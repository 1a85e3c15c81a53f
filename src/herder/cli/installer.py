"""`herder installer`: the images that machines install Kubernetes from, where the programs come from elsewhere."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from herder.api.rke.names import KUBEADM_INSTALLER
from herder.api.settings import DEFINITIONS, INSTALLER_IMAGE
from herder.installers import InstallerError, tag
from herder.kubeadm.installer import PROGRAMS

if TYPE_CHECKING:
    from herder.clusteragent.registry import Login
    from herder.oci import Image

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
K3S_INSTALLER = f"{DEFINITIONS[INSTALLER_IMAGE].default}k3s"


@click.group()
def command() -> None:
    """Make images that machines install Kubernetes from."""


def _where_to(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of all that make an image; `_Delivery` is made of them."""
    options = (
        click.option(
            "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write an archive for machines."
        ),
        click.option("--push", "target", metavar="REGISTRY/NAME[:TAG]", help="Push it to a registry."),
        click.option("--username", help="For the registry."),
        click.option("--password-file", type=FILE, help="Its password."),
    )
    for option in reversed(options):
        command = option(command)
    return command


# --- kubeadm ----------------------------------------------------------------------------------------------------------


def _programs(command: Callable[..., Any]) -> Callable[..., Any]:
    for name in reversed(PROGRAMS):
        command = click.option(f"--{name}", type=FILE, help="This program, if it is not in --from.")(command)
    return command


@command.command()
@click.option("--version", required=True, help="What clusters ask for, such as v1.36.3+kubeadm1.")
@click.option("--from", "directory", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Programs.")
@_programs
@_where_to
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
    from herder.kubeadm.installer import build

    found = {name: given[name.replace("-", "_")] or (directory / name if directory else None) for name in PROGRAMS}
    programs = {name: path for name, path in found.items() if path is not None}
    delivery = _Delivery.of(KUBEADM_INSTALLER, output, target, username, password_file)
    delivery.deliver(version, lambda scratch: build(version, programs, scratch))


# --- k3s --------------------------------------------------------------------------------------------------------------


@command.command()
@click.option("--binary", required=True, type=FILE, help="K3s, as it was built or downloaded.")
@click.option("--version", help="What clusters ask for, such as v1.36.3+k3s1; without, what the binary tells.")
@_where_to
def k3s(
    binary: Path,
    version: str | None,
    output: Path | None,
    target: str | None,
    username: str | None,
    password_file: Path | None,
) -> None:
    """Make the installer image of k3s clusters from a binary of k3s. Nothing is downloaded."""
    from herder.k3s.installer import build

    delivery = _Delivery.of(K3S_INSTALLER, output, target, username, password_file)
    wanted = _version_of(binary, version)
    delivery.deliver(wanted, lambda scratch: build(wanted, binary, scratch))


def _version_of(binary: Path, wanted: str | None) -> str:
    from herder.k3s.installer import version_of

    try:
        told = version_of(binary)
    except InstallerError as problem:  # it may be for machines of another kind
        if wanted:
            return wanted
        raise click.ClickException(f"{problem}; say what it is with --version") from None
    if not wanted and not told:
        raise click.ClickException(f"{binary} does not tell its version; say it with --version")
    if wanted and told and wanted != told:
        click.echo(f"{binary} tells that it is {told}: machines wait in vain for nodes of {wanted}", err=True)
    return wanted or told


# --- where it goes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Delivery:
    name: str  # under which plans look for it
    output: Path | None
    target: str | None
    login: Login | None

    @staticmethod
    def of(
        name: str, output: Path | None, target: str | None, username: str | None, password_file: Path | None
    ) -> _Delivery:
        from herder.clusteragent.registry import Login

        if (output is None) == (target is None):
            raise click.UsageError("one of --output and --push is needed")
        if (username is None) != (password_file is None):
            raise click.UsageError("--username and --password-file go together")
        login = Login(username, password_file.read_text().strip()) if username and password_file else None
        return _Delivery(name, output, target, login)

    def deliver(self, version: str, build: Callable[[Path], Image]) -> None:
        beside = self.output.parent if self.output else None
        with tempfile.TemporaryDirectory(prefix="herder-installer-", dir=beside) as scratch:
            try:
                made = build(Path(scratch))
            except InstallerError as problem:
                raise click.ClickException(str(problem)) from None
            if self.output is not None:
                self._write(made, tag(version), self.output, Path(scratch))
            if self.target is not None:
                self._push(made, tag(version), self.target)

    def _write(self, made: Image, tag: str, output: Path, scratch: Path) -> None:
        from herder.oci import write_archive

        with (scratch / "archive").open("wb") as file:
            write_archive(made, f"{self.name}:{tag}", file)
        (scratch / "archive").replace(output)
        click.echo(output)
        click.echo("machines that have it in /var/lib/rancher/agent/images install from it", err=True)

    def _push(self, made: Image, tag: str, target: str) -> None:
        from herder.clusteragent.registry import Reference, RegistryError, Repository

        reference = target if ":" in target.rpartition("/")[2] else f"{target}:{tag}"

        async def push() -> str:
            async with Repository(Reference.parse(reference), self.login) as repository:
                return await repository.put_image(made)

        try:
            digest = asyncio.run(push())
        except RegistryError as problem:
            raise click.ClickException(str(problem)) from None
        click.echo(f"{reference}@{digest}")
        registry, _, name = reference.rpartition(":")[0].partition("/")
        if name == self.name:
            click.echo(f"clusters use it with: herder up --set system-default-registry={registry}", err=True)
