"""`herder delete cluster`: a cluster goes, with its machines."""

from __future__ import annotations

import click

from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.cli.cluster_options import change, cluster_options
from herder.cli.nouns import Nouns


@click.group(cls=Nouns)
def command() -> None:
    """Remove something, and all that belongs to it."""


@command.command()
@cluster_options
def cluster(name: str, namespace: str, wait: bool, timeout: float, kubeconfig: str | None) -> None:
    """Remove the cluster NAME and its machines. What was made elsewhere is only let go."""
    change(
        kubeconfig,
        namespace,
        name,
        lambda client: client.delete(PROVISIONING_CLUSTER.resource, name, namespace=namespace),
        wait=wait,
        timeout=timeout,
        gone=True,
    )
