"""`herder logs machine`: logs of the Jobs that created and removed a machine, including deleted ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from herder.app.host.paths import kubeconfig_option, namespace_option, search_namespaces
from herder.cli.client import connect
from herder.cli.cluster.inspect.logs import cluster
from herder.cli.cluster.owned import cluster_of_machine, machine_log_of
from herder.cli.examples import examples
from herder.cli.machine.lookup import find_machine
from herder.cli.resources import ResourceGroup
from herder.engine.client import kubeconfig as kubeconfigs
from herder.engine.client.client import Client
from herder.engine.meta.errors import Forbidden, StatusError
from herder.engine.meta.printable import printable
from herder.gateway.machine_logs import stream_machine_log


@click.group(
    cls=ResourceGroup,
    epilog=examples("herder logs cluster meadow", "herder logs machine meadow-workers-x7k2p-abcde -f"),
)
def command() -> None:
    """Show provisioning logs of a cluster or machine, including deleted ones."""


command.add_command(cluster)


@command.command(
    epilog=examples(
        "herder logs machine meadow-workers-x7k2p-abcde",
        "herder logs machine meadow-workers-x7k2p-abcde -f",
    )
)
@click.argument("name")
@namespace_option("the Machine")
@click.option("-f", "--follow", is_flag=True, help="Stream the log while the machine is created or deleted.")
@kubeconfig_option
def machine(name: str, namespace: str | None, follow: bool, kubeconfig: str | None) -> None:
    """Show the logs of the Jobs that created and deleted the machine NAME.

    The setting archive-retention limits how long the logs of deleted machines are kept.
    """
    try:
        connection = connect(kubeconfig)
        asyncio.run(_show(connection, search_namespaces(namespace, connection.namespace), name, follow))
    except (StatusError, kubeconfigs.KubeconfigError) as error:
        raise click.ClickException(str(error)) from error


async def _show(connection: kubeconfigs.RestConfig, namespaces: Sequence[str], name: str, follow: bool) -> None:
    from herder.engine.client.http import HttpTransport

    client = Client(HttpTransport(connection))
    try:
        if await _print_logs(client, namespaces, name, follow):
            return
    finally:
        await client.close()
    raise click.ClickException(f'no logs found for machine "{name}" in namespace {" or ".join(namespaces)}')


async def _print_logs(client: Client, namespaces: Sequence[str], name: str, follow: bool) -> bool:
    try:
        places = await find_machine(client, namespaces, name)
        for found in places:
            reported = False
            async for text in stream_machine_log(client, found.namespace, found.name, follow=follow):
                click.echo(printable(text), nl=False)
                reported = True
            if reported:
                return True
    except Forbidden:
        # Owners of a cluster read the logs of its machines through the manager.
        cluster = await cluster_of_machine(client, name)
        if cluster is None:
            raise
        text = await machine_log_of(client, cluster, name)
        click.echo(printable(text), nl=False)
        return bool(text)
    return False
