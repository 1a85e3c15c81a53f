"""`herder logs machine`: logs of the Jobs that created and removed a machine, including deleted ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import click

from herder.api.machines.archive import NAME_OF, NAMESPACE_OF
from herder.api.machines.names import (
    ARCHIVE_NAMESPACE,
    CREATE_LOG,
    INFRA_NAME_LABEL,
    INFRA_REMOVE_LABEL,
    REMOVE_LOG,
    archived_log,
    archived_log_before,
)
from herder.app.paths import kubeconfig_option, kubeconfig_path, namespace_option, search_namespaces
from herder.cli.cluster.logs import cluster
from herder.cli.examples import examples
from herder.cli.machine.lookup import Found, find_machine
from herder.cli.resources import ResourceGroup
from herder.engine.client import kubeconfig as kubeconfigs
from herder.engine.client.client import Client
from herder.engine.meta.errors import Forbidden, NotFound, StatusError
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.engine.meta.printable import printable
from herder.engine.wire import Query

PODS = GroupVersionResource("", "v1", "pods")
CONFIG_MAPS = GroupVersionResource("", "v1", "configmaps")


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
        connection = kubeconfigs.load(kubeconfig_path(kubeconfig))
        asyncio.run(_show(connection, search_namespaces(namespace, connection.namespace), name, follow))
    except (StatusError, kubeconfigs.KubeconfigError) as error:
        raise click.ClickException(str(error)) from error


async def _show(connection: kubeconfigs.RestConfig, namespaces: Sequence[str], name: str, follow: bool) -> None:
    from herder.engine.client.http import HttpTransport

    client = Client(HttpTransport(connection))
    try:
        for found in await find_machine(client, namespaces, name):
            if await _print_logs(client, found, follow):
                return
    finally:
        await client.close()
    raise click.ClickException(f'no logs found for machine "{name}" in namespace {" or ".join(namespaces)}')


async def _print_logs(client: Client, found: Found, follow: bool) -> bool:
    pods = await _pods(client, found)
    archived = await _archived(client, found)
    reported = False
    for key, removing in ((CREATE_LOG, False), (REMOVE_LOG, True)):
        own = [pod for pod in pods if (INFRA_REMOVE_LABEL in _labels(pod)) is removing]
        for pod in own:
            async for text in _pod_log(client, pod, follow):
                click.echo(printable(text), nl=False)
                reported = True
        if not own and key in archived:
            click.echo(printable(archived[key]), nl=not archived[key].endswith("\n"))
            reported = True
    return reported


async def _pods(client: Client, found: Found) -> list[Object]:
    """Pods of existing Jobs, oldest first."""
    try:
        page = await client.list_all(PODS, namespace=found.namespace, labels=f"{INFRA_NAME_LABEL}={found.name}")
    except Forbidden:
        return []
    return sorted(page.items, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))


async def _archived(client: Client, found: Found) -> dict[str, str]:
    for name in (archived_log(found.namespace, found.name), archived_log_before(found.namespace, found.name)):
        with suppress(NotFound):
            kept = await client.get(CONFIG_MAPS, name, namespace=ARCHIVE_NAMESPACE)
            whose = kept["metadata"].get("annotations") or {}
            if (whose.get(NAMESPACE_OF), whose.get(NAME_OF)) == (found.namespace, found.name):
                return kept.get("data") or {}
    return {}


async def _pod_log(client: Client, pod: Object, follow: bool) -> AsyncIterator[str]:
    meta = pod["metadata"]
    query = Query([("follow", "true")] if follow else [])
    response = await client.raw("GET", PODS.path(meta["namespace"], meta["name"], "log"), query)
    if response.status >= 400:
        return  # not started, just deleted, or forbidden
    if response.stream is None:
        yield response.content().decode(errors="replace")
        return
    async for chunk in response.stream:
        yield chunk.decode(errors="replace")


def _labels(pod: Object) -> dict[str, str]:
    return pod["metadata"].get("labels") or {}
