"""`herder kubeconfig`: the way into a managed cluster, through the manager, as whoever asks."""

from __future__ import annotations

import json

import click

from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.cli.asking import ask
from herder.cli.places import kubeconfig_option
from herder.engine.client.client import Client
from herder.engine.client.wire import Query
from herder.engine.meta.errors import Forbidden


@click.command()
@click.argument("cluster")
@kubeconfig_option
def command(cluster: str, kubeconfig: str | None) -> None:
    """Print a kubeconfig for the managed CLUSTER, by its name or its id."""
    click.echo(ask(kubeconfig, lambda client, _here: _made(client, cluster)), nl=False)


async def _made(client: Client, cluster: str) -> str:
    path = f"/v3/clusters/{await _id_of(client, cluster)}"
    response = await client.raw("POST", path, Query([("action", "generateKubeconfig")]))
    content = response.content()
    told = json.loads(content) if content[:1] == b"{" else {}
    if response.status >= 400 or "config" not in told:
        raise click.ClickException(
            told.get("message") or "log in at the manager first (herder login): only users get kubeconfigs"
        )
    return str(told["config"])


async def _id_of(client: Client, cluster: str) -> str:
    """People know clusters by the name that they gave them. Who may not list them says the id."""
    try:
        known = (await client.list_all(MANAGEMENT_CLUSTER.resource)).items
    except Forbidden:
        return cluster
    named = [one for one in known if (one.get("spec") or {}).get("displayName") == cluster]
    if len(named) > 1:
        raise click.ClickException(f"several clusters are named {cluster}: say the id of one")
    return str(named[0]["metadata"]["name"]) if named else cluster
