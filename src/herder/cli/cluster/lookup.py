"""Find managed clusters by name, and connect to their manager."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

import click

from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.app.host.paths import kubeconfig_path
from herder.cli.auth.kubeconfig_merge import own_kubeconfig
from herder.cli.auth.saved_logins import server_url
from herder.cli.client import ask
from herder.engine.client.client import Client
from herder.engine.client.kubeconfig import RestConfig

Answer = TypeVar("Answer")


def ask_manager(kubeconfig: str | None, question: Callable[[Client, RestConfig], Awaitable[Answer]]) -> Answer:
    """Run as the logged-in user, even if the current context is a cluster behind the manager."""
    path = str(manager_file(kubeconfig))
    return ask(path, question, place=lambda here: replace(here, server=server_url(here.server)))


def manager_file(kubeconfig: str | None) -> Path:
    """The user's own kubeconfig, with the entry that `herder login` wrote, else that of the embedded server."""
    own = own_kubeconfig(kubeconfig)
    return own if own.exists() else kubeconfig_path(kubeconfig)


async def cluster_named(client: Client, cluster: str) -> tuple[str, str]:
    """ID and display name of a cluster, given either."""
    names = await _clusters(client)
    found = [name for name, shown in names.items() if shown == cluster and name != cluster]
    if cluster in names and found:
        # Users choose names freely, so a name may equal the ID of another cluster.
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


async def clusters_of_user(client: Client) -> dict[str, str]:
    """Name by ID of the clusters of a logged-in user; empty for other clients."""
    reported = await client.raw("GET", "/v3/clusters", headers={"accept": "application/json"})
    if reported.status != HTTPStatus.OK:
        return {}
    return {each["id"]: each["name"] for each in json.loads(reported.content())["data"]}


async def _clusters(client: Client) -> dict[str, str]:
    """Name by ID. The manager returns the user's clusters; others list all with the API server."""
    if found := await clusters_of_user(client):
        return found
    known = (await client.list_all(MANAGEMENT_CLUSTER.resource)).items
    return {each["metadata"]["name"]: (each.get("spec") or {}).get("displayName") or "" for each in known}
