"""Managed clusters as people name them, and the manager that they are asked of."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import click

from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.cli.asking import ask
from herder.cli.kept_logins import server_url
from herder.cli.merging import own_kubeconfig
from herder.engine.client.client import Client
from herder.engine.client.kubeconfig import Connection

Answer = TypeVar("Answer")


def ask_manager(kubeconfig: str | None, question: Callable[[Client, Connection], Awaitable[Answer]]) -> Answer:
    """As the user who logged in there, also where the current context leads to a cluster behind it."""
    own = own_kubeconfig(kubeconfig)
    path = str(own) if own.exists() else kubeconfig
    return ask(path, question, place=lambda here: replace(here, server=server_url(here.server)))


async def cluster_named(client: Client, cluster: str) -> tuple[str, str]:
    """Its id and its name: people know clusters by the name that they gave them."""
    names = await _clusters(client)
    found = [name for name, shown in names.items() if shown == cluster and name != cluster]
    if cluster in names and found:
        # Users choose both, so one could have the ID of a cluster be the name of another's.
        raise click.ClickException(
            f"{cluster} is the ID of one cluster and the name of another; pass the ID of the latter "
            f"({', '.join(found)}), or the name of the former"
        )
    if cluster in names:
        shown = names[cluster]
        return cluster, shown if shown and shown.isprintable() else cluster
    if len(found) > 1:
        raise click.ClickException(
            f"several clusters are named {cluster}; pass the ID of one instead ({', '.join(found)})"
        )
    if not found:
        raise click.ClickException(
            f'cluster "{cluster}" not found; list clusters with: herder get clusters.management.cattle.io'
        )
    return found[0], cluster


async def _clusters(client: Client) -> dict[str, str]:
    """Id → name. The manager tells its users of theirs; who is no user of it asks the API server for all."""
    reported = await client.raw("GET", "/v3/clusters", headers={"accept": "application/json"})
    if reported.status == 200:
        return {each["id"]: each["name"] for each in json.loads(reported.content())["data"]}
    known = (await client.list_all(MANAGEMENT_CLUSTER.resource)).items
    return {each["metadata"]["name"]: (each.get("spec") or {}).get("displayName") or "" for each in known}
