"""`herder logs cluster`: provisioning log of a cluster, including deleted ones."""

from __future__ import annotations

import asyncio

import click

from herder.api.machines.archive import CONFIG_MAP
from herder.api.machines.names import ARCHIVE_LABEL, ARCHIVE_NAMESPACE
from herder.api.rke import log
from herder.app.paths import kubeconfig_option, kubeconfig_path, workspace_option
from herder.cli.examples import examples
from herder.engine.client import kubeconfig as kubeconfigs
from herder.engine.client.client import Client
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import Object
from herder.engine.meta.printable import printable


@click.command(epilog=examples("herder logs cluster meadow"))
@click.argument("name")
@workspace_option
@kubeconfig_option
def cluster(name: str, namespace: str, kubeconfig: str | None) -> None:
    """Show the provisioning log of the cluster NAME.

    The output includes the logs of deleted clusters with the same name, oldest first.
    """
    try:
        logs = asyncio.run(_logs(kubeconfigs.load(kubeconfig_path(kubeconfig)), namespace, name))
    except (StatusError, kubeconfigs.KubeconfigError) as error:
        raise click.ClickException(str(error)) from error
    if not logs:
        raise click.ClickException(f'no logs found for cluster "{name}" in namespace "{namespace}"')
    click.echo(printable("".join(logs)), nl=False)


async def _logs(connection: kubeconfigs.RestConfig, namespace: str, name: str) -> list[str]:
    """Logs, oldest first. The archive is never behind the log of the cluster."""
    from herder.engine.client.http import HttpTransport

    client = Client(HttpTransport(connection))
    try:
        labels = f"{ARCHIVE_LABEL}={log.ARCHIVED}"
        kept = (await client.list_all(CONFIG_MAP.resource, namespace=ARCHIVE_NAMESPACE, labels=labels)).items
    finally:
        await client.close()
    its = [each for each in kept if log.cluster_of(each) == (namespace, name)]
    return [str((each.get("data") or {}).get(log.LOG, "")) for each in sorted(its, key=_made)]


def _made(kept: Object) -> str:
    return str(kept["metadata"]["creationTimestamp"])
