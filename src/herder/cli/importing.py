"""`herder import`: a cluster that exists comes under management; what is to be run there is printed."""

from __future__ import annotations

import asyncio
import base64
from contextlib import suppress

import click

from herder.api.capi.kinds import NAMESPACE, SECRET
from herder.api.management.commands import PLACE_OF_TOKEN, ca_checksum
from herder.api.management.kinds import PROVISIONING_CLUSTER, REGISTRATION_TOKEN
from herder.api.management.names import DEFAULT_TOKEN
from herder.api.settings import SERVER_CERTIFICATES, SERVER_URL, SETTING
from herder.cli.asking import ask
from herder.cli.examples import examples
from herder.cli.places import kubeconfig_option, workspace_option
from herder.engine.client.client import Client
from herder.engine.meta.errors import AlreadyExists, NotFound

PATIENCE_SECONDS = 30.0


@click.command(epilog=examples("herder import barn"))
@click.argument("name")
@workspace_option
@kubeconfig_option
def command(name: str, namespace: str, kubeconfig: str | None) -> None:
    """Import an existing cluster as NAME and print the command that connects it."""
    cluster, url, checksum = ask(kubeconfig, lambda client, _here: _import(client, namespace, name))
    click.echo(
        f"Cluster {name} has the ID {cluster}. To connect it, run this command as an administrator of that cluster:\n\n"
        f"  kubectl apply -f {url}\n\n"
        "The URL contains the registration token; treat it as a password. "
        f"SHA-256 of the manager's CA certificates: {checksum}"
    )


async def _import(client: Client, namespace: str, name: str) -> tuple[str, str, str]:
    kind = PROVISIONING_CLUSTER
    with suppress(AlreadyExists):
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        await client.create(NAMESPACE.resource, space)
    with suppress(AlreadyExists):
        wanted = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": {}}
        await client.create(kind.resource, wanted, namespace=namespace)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            cluster = await _named(client, namespace, name)
            url = await _manifest_url(client, cluster)
    except TimeoutError:
        raise click.ClickException(
            f"cluster {name}: timed out waiting for the registration command; check the setting {SERVER_URL}"
        ) from None
    return cluster, url, ca_checksum(await _setting(client, SERVER_CERTIFICATES))


async def _named(client: Client, namespace: str, name: str) -> str:
    """Once the controllers have given it its name."""
    async for event in client.watch(
        PROVISIONING_CLUSTER.resource, namespace=namespace, fields=f"metadata.name={name}", initial_events=True
    ):
        told = (event.object.get("status") or {}).get("clusterName")
        if told:
            return str(told)
    raise click.ClickException(f"cluster {name} has no status.clusterName; run the manager with a gateway")


async def _manifest_url(client: Client, cluster: str) -> str:
    """As the manager itself tells it, by the settings that it goes by; with the token in its place."""
    async for event in client.watch(
        REGISTRATION_TOKEN.resource, namespace=cluster, fields=f"metadata.name={DEFAULT_TOKEN}", initial_events=True
    ):
        status = event.object.get("status") or {}
        if status.get("manifestUrl") and status.get("tokenSecretName"):
            secret = await client.get(SECRET.resource, status["tokenSecretName"], namespace=cluster)
            token = base64.b64decode(secret["data"]["token"]).decode()
            return str(status["manifestUrl"]).replace(PLACE_OF_TOKEN, token)
    raise click.ClickException(f"cluster {cluster} has no registration token; run the manager with a gateway")


async def _setting(client: Client, name: str) -> str:
    with suppress(NotFound):
        setting = await client.get(SETTING.resource, name)
        return str(setting.get("value") or setting.get("default") or "")
    return ""
