"""`herder scp`: copy files to or from a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from herder.app.host.paths import kubeconfig_option, namespace_option
from herder.cli.examples import examples
from herder.cli.machine.ssh_access import MachineAccess, load

if TYPE_CHECKING:
    from herder.machine.state.saved_machine import SavedMachine


@click.command(
    epilog=examples(
        "herder scp notes.txt meadow-workers-x7k2p-abcde:/root/",
        "herder scp -r meadow-workers-x7k2p-abcde:/var/log ./logs",
    )
)
@click.argument("source")
@click.argument("target")
@click.option("-r", "--recursive", is_flag=True, help="Copy directories recursively.")
@namespace_option("the Machines")
@kubeconfig_option
def command(source: str, target: str, recursive: bool, namespace: str | None, kubeconfig: str | None) -> None:
    """Copy SOURCE to TARGET. At least one of them is on a machine: MACHINE:PATH."""
    from herder.machine.errors import MachineError
    from herder.machine.ssh.copying import copy

    entries: dict[str, MachineAccess] = {}

    def find(name: str) -> SavedMachine:
        entries[name] = load(name, namespace, kubeconfig)
        return entries[name].saved

    def remember(saved: SavedMachine) -> None:
        for entry in entries.values():
            if entry.saved.files is saved.files:
                entry.remember_host_key()

    try:
        copy(source, target, find, recursive=recursive, remember=remember)
    except MachineError as error:
        raise click.ClickException(str(error)) from error
