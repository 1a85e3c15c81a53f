"""`herder import`: import an existing cluster and print the command that connects it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import click

from herder.api.capi.names import annotations_of
from herder.api.machines.credentials import CREATOR
from herder.api.management.commands import TOKEN_PLACEHOLDER, ca_checksum, pinned_import_command
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.settings import SERVER_CERTIFICATES, SERVER_URL, SETTING
from herder.app.host.paths import kubeconfig_option, workspace_option
from herder.cli.client import ask
from herder.cli.cluster.creator import creator_annotation, own_user
from herder.cli.cluster.options import missing_namespace
from herder.cli.cluster.owned import cluster_id
from herder.cli.cluster.progress import GRANT_SECONDS
from herder.cli.examples import examples
from herder.cli.machine.register import registration, warn_if_unreachable
from herder.engine.client.client import Client
from herder.engine.meta.errors import AlreadyExists, Forbidden, NotFound

REGISTRATION_TIMEOUT_SECONDS = 30.0
POLL_SECONDS = 0.2


@click.command(epilog=examples("herder import barn"))
@click.argument("name")
@workspace_option
@click.option(
    "--existing", is_flag=True, help="Also connect the cluster to an object NAME that another user created and owns."
)
@kubeconfig_option
def command(name: str, namespace: str, existing: bool, kubeconfig: str | None) -> None:
    """Import an existing cluster as NAME and print the command that connects it."""
    cluster, url, checksum = ask(kubeconfig, lambda client, _here: _import(client, namespace, name, of_others=existing))
    click.echo(
        f"Cluster {name} has the ID {cluster}. To connect it, run this command as an administrator of that cluster:\n\n"
        f"  {pinned_import_command(url, checksum)}\n\n"
        "The command contains the registration token; treat it as a password. "
        f"SHA-256 of the manager's CA certificates: {checksum}"
    )
    warn_if_unreachable(url, "pods of a cluster on another host")


async def _import(client: Client, namespace: str, name: str, *, of_others: bool) -> tuple[str, str, str]:
    kind, exists = PROVISIONING_CLUSTER, False
    metadata = {"name": name, "annotations": await creator_annotation(client)}
    wanted = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": {}}
    try:
        with missing_namespace(namespace):
            await client.create(kind.resource, wanted, namespace=namespace)
    except AlreadyExists:
        exists = True
    try:
        async with asyncio.timeout(REGISTRATION_TIMEOUT_SECONDS):
            cluster = await _named(client, namespace, name)
            if exists and not of_others:
                await _check_creator(client, name, cluster)
            url = await _manifest_url(client, cluster)
    except TimeoutError:
        raise click.ClickException(
            f"cluster {name}: timed out waiting for the registration command; check the setting {SERVER_URL}"
        ) from None
    return cluster, url, ca_checksum(await _setting(client, SERVER_CERTIFICATES))


async def _named(client: Client, namespace: str, name: str) -> str:
    """Wait for status.clusterName. The creator gets the right to read it together with the ID."""
    since = asyncio.get_running_loop().time()
    while True:
        try:
            if reported := await cluster_id(client, namespace, name):
                return reported
        except Forbidden:
            if asyncio.get_running_loop().time() - since > GRANT_SECONDS:
                raise
        await asyncio.sleep(POLL_SECONDS)


async def _check_creator(client: Client, name: str, cluster: str) -> None:
    """The creator of the object owns the connected cluster, and any user could have created that name."""
    management = await client.get(MANAGEMENT_CLUSTER.resource, cluster)
    creator = annotations_of(management).get(CREATOR)
    if creator and creator != (await own_user(client)).get("username"):
        raise click.ClickException(
            f'cluster {name} exists and belongs to user "{creator}", who would administer the cluster that you connect '
            "to it; choose another name, or pass --existing"
        )


async def _manifest_url(client: Client, cluster: str) -> str:
    """The URL from the status of the registration token, with the token filled in."""
    while True:
        status, token = await registration(client, cluster)
        if status.get("manifestUrl") and token:
            return str(status["manifestUrl"]).replace(TOKEN_PLACEHOLDER, token)
        await asyncio.sleep(POLL_SECONDS)


async def _setting(client: Client, name: str) -> str:
    with suppress(NotFound):
        setting = await client.get(SETTING.resource, name)
        return str(setting.get("value") or setting.get("default") or "")
    return ""
