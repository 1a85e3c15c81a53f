"""`herder delete cluster`: delete a cluster and its machines."""

from __future__ import annotations

import click

from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.cli.cluster.options import DELETED, change, cluster_options
from herder.cli.confirmation import confirm, yes_option
from herder.cli.examples import examples
from herder.cli.resources import ResourceGroup
from herder.engine.client.client import Client
from herder.engine.meta.errors import Forbidden
from herder.engine.meta.kinds import Object

EXAMPLES = examples("herder delete cluster meadow", "herder delete cluster meadow --yes --no-wait")


@click.group(cls=ResourceGroup, epilog=EXAMPLES)
def command() -> None:
    """Delete a cluster and its machines."""


@command.command(epilog=EXAMPLES)
@cluster_options
@yes_option
def cluster(name: str, namespace: str, wait: bool, timeout: float, kubeconfig: str | None, yes: bool) -> None:
    """Delete the cluster NAME and its machines.

    Imported clusters and registered machines are removed from the manager but keep running. On a terminal, the command
    asks for confirmation.
    """
    confirm(f"Delete cluster {name} in namespace {namespace} with all its machines and data?", yes)
    change(
        kubeconfig,
        namespace,
        name,
        lambda client: _delete(client, namespace, name),
        wait=wait,
        timeout=timeout,
        until=DELETED,
    )


async def _delete(client: Client, namespace: str, name: str) -> Object:
    """Delete the Cluster, and return it as it was before."""
    try:
        known = await client.get(PROVISIONING_CLUSTER.resource, name, namespace=namespace)
    except Forbidden:
        known = {}
    await client.delete(PROVISIONING_CLUSTER.resource, name, namespace=namespace)
    return known
