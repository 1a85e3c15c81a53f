"""`herder installer`: build installer images for k3s and kubeadm clusters."""

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
from herder.cli.examples import examples
from herder.installers import InstallerError, tag
from herder.kubeadm.installer import PROGRAMS

if TYPE_CHECKING:
    from herder.clusteragent.registry import Login
    from herder.oci import Image

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
K3S_INSTALLER = f"{DEFINITIONS[INSTALLER_IMAGE].default}k3s"


@click.group(
    epilog=examples(
        "herder installer kubeadm --version v1.36.3+kubeadm1 --from ./bin --output kubeadm.tar",
        "herder installer k3s --binary ./k3s --push registry.example.com/rancher/system-agent-installer-k3s",
    )
)
def command() -> None:
    """Build images that machines install Kubernetes from."""


def _output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options for the destination of an image; see `_Delivery`."""
    options = (
        click.option(
            "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the image to this archive."
        ),
        click.option("--push", "target", metavar="REGISTRY/NAME[:TAG]", help="Push the image to this registry."),
        click.option("--username", metavar="NAME", help="User name for the registry."),
        click.option("--password-file", type=FILE, help="File with the registry password."),
    )
    for option in reversed(options):
        command = option(command)
    return command


# --- kubeadm --------------------------------------------------------------------------------------------------------


def _programs(command: Callable[..., Any]) -> Callable[..., Any]:
    for name in reversed(PROGRAMS):
        command = click.option(
            f"--{name}", type=FILE, help=f"Path of {name}. Default: {name} in the directory of --from."
        )(command)
    return command


@command.command(
    epilog=examples(
        "herder installer kubeadm --version v1.36.3+kubeadm1 --from ./bin --output kubeadm.tar",
        "herder installer kubeadm --version v1.36.3+kubeadm1 --from ./bin --etcd ./etcd/etcd \\",
        "    --push registry.example.com/herder/system-agent-installer-kubeadm",
    )
)
@click.option(
    "--version",
    metavar="VERSION",
    required=True,
    help="Kubernetes version that clusters request, such as v1.36.3+kubeadm1.",
)
@click.option(
    "--from",
    "directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory with the binaries.",
)
@_programs
@_output_options
def kubeadm(
    version: str,
    directory: Path | None,
    output: Path | None,
    target: str | None,
    username: str | None,
    password_file: Path | None,
    **given: Path | None,
) -> None:
    """Build the installer image of kubeadm clusters from Kubernetes binaries.

    The command downloads nothing. It takes each binary from its own flag, or from the --from directory.
    """
    from herder.kubeadm.installer import build

    found = {name: given[name.replace("-", "_")] or (directory / name if directory else None) for name in PROGRAMS}
    programs = {name: path for name, path in found.items() if path is not None}
    delivery = _Delivery.of(KUBEADM_INSTALLER, output, target, username, password_file)
    delivery.deliver(version, lambda scratch: build(version, programs, scratch))


# --- k3s ------------------------------------------------------------------------------------------------------------


@command.command(
    epilog=examples(
        "herder installer k3s --binary ./k3s --output k3s.tar",
        "herder installer k3s --binary ./k3s --push registry.example.com/rancher/system-agent-installer-k3s",
    )
)
@click.option("--binary", required=True, type=FILE, help="Path of the k3s binary.")
@click.option(
    "--version",
    metavar="VERSION",
    help="Kubernetes version that clusters request, such as v1.36.3+k3s1. Default: the version of the binary.",
)
@_output_options
def k3s(
    binary: Path,
    version: str | None,
    output: Path | None,
    target: str | None,
    username: str | None,
    password_file: Path | None,
) -> None:
    """Build the installer image of k3s clusters from a k3s binary. The command downloads nothing."""
    from herder.k3s.installer import build

    delivery = _Delivery.of(K3S_INSTALLER, output, target, username, password_file)
    wanted = _version_of(binary, version)
    delivery.deliver(wanted, lambda scratch: build(wanted, binary, scratch))


def _version_of(binary: Path, wanted: str | None) -> str:
    from herder.k3s.installer import version_of

    try:
        reported = version_of(binary)
    except InstallerError as problem:  # the binary may be for another architecture
        if wanted:
            return wanted
        raise click.ClickException(f"{problem}; pass its version with --version") from None
    if not wanted and not reported:
        raise click.ClickException(f"{binary}: cannot read the version; pass it with --version")
    if wanted and reported and wanted != reported:
        click.echo(
            f"WARNING: {binary} reports version {reported}; "
            f"clusters of version {wanted} will wait for their nodes forever",
            err=True,
        )
    return wanted or reported


# --- destination ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Delivery:
    name: str  # image name that plans use
    output: Path | None
    target: str | None
    login: Login | None

    @staticmethod
    def of(
        name: str, output: Path | None, target: str | None, username: str | None, password_file: Path | None
    ) -> _Delivery:
        from herder.clusteragent.registry import Login

        if (output is None) == (target is None):
            raise click.UsageError("pass exactly one of --output and --push")
        if (username is None) != (password_file is None):
            raise click.UsageError("--username and --password-file must be used together")
        login = Login(username, password_file.read_text().strip()) if username and password_file else None
        return _Delivery(name, output, target, login)

    def deliver(self, version: str, build: Callable[[Path], Image]) -> None:
        directory = self.output.parent if self.output else None
        with tempfile.TemporaryDirectory(prefix="herder-installer-", dir=directory) as scratch:
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
        click.echo("To install from it, copy it to /var/lib/rancher/agent/images on the machines", err=True)

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
            click.echo(f"To use this image, run: herder up --set system-default-registry={registry}", err=True)
