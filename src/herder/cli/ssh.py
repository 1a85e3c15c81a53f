"""`herder ssh`: a shell on a machine that Herder provisioned, or one command there."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from herder.cli.finding import find_machine, read_state
from herder.cli.places import kubeconfig_option, kubeconfig_path
from herder.engine.client import kubeconfig as kubeconfigs
from herder.engine.client.client import Client
from herder.engine.meta.errors import StatusError

if TYPE_CHECKING:
    from herder.machine.state.reading import SavedMachine


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("machine")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@click.option("-n", "--namespace", help="Where the machine is; the kubeconfig's own by default.")
@kubeconfig_option
def command(machine: str, words: tuple[str, ...], namespace: str | None, kubeconfig: str | None) -> None:
    """Open a shell on MACHINE, or run COMMAND there."""
    from herder.machine.errors import MachineError
    from herder.machine.ssh.session import interactive

    saved = saved_machine_of(machine, namespace, kubeconfig)
    try:
        sys.exit(interactive(saved, words))
    except MachineError as error:
        raise click.ClickException(str(error)) from error


def saved_machine_of(name: str, namespace: str | None, kubeconfig: str | None) -> SavedMachine:
    """What is saved of the machine, as far as the caller may know it."""
    from herder.machine.errors import MachineError
    from herder.machine.state.reading import saved_machine

    try:
        connection = kubeconfigs.load(kubeconfig_path(kubeconfig))
        archive = asyncio.run(_archive(connection, namespace or connection.namespace, name))
        return saved_machine(archive)
    except (StatusError, kubeconfigs.KubeconfigError, MachineError) as error:
        raise click.ClickException(str(error)) from error


async def _archive(connection: kubeconfigs.Connection, namespace: str, name: str) -> bytes:
    from herder.engine.client.http import HttpTransport

    client = Client(HttpTransport(connection))
    try:
        return await read_state(client, await find_machine(client, namespace, name))
    finally:
        await client.close()
