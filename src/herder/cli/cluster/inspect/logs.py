"""`herder logs cluster`: provisioning log of a cluster, including deleted ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import click

from herder.api.machines.archive import CONFIG_MAP
from herder.api.machines.names import ARCHIVE_LABEL, ARCHIVE_NAMESPACE
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke import log
from herder.app.host.paths import kubeconfig_option, workspace_option
from herder.cli.client import ask
from herder.cli.cluster.inspect.diagnosis import diagnose, find_cluster
from herder.cli.cluster.owned import cluster_id, log_of
from herder.cli.examples import examples
from herder.engine.client.client import Client
from herder.engine.meta.errors import Forbidden, NotFound
from herder.engine.meta.kinds import Object
from herder.engine.meta.printable import printable

POLL_SECONDS = 1.0


@click.command(epilog=examples("herder logs cluster meadow", "herder logs cluster meadow -f"))
@click.argument("name")
@workspace_option
@click.option("-f", "--follow", is_flag=True, help="Print new entries until the cluster is deleted.")
@kubeconfig_option
def cluster(name: str, namespace: str, follow: bool, kubeconfig: str | None) -> None:
    """Show the provisioning log of the cluster NAME.

    The first line says whether the cluster is ready, and if not, why. The output includes the logs of deleted clusters
    with the same name, oldest first. Only administrators see those.
    """

    async def show(client: Client) -> None:
        found = await find_cluster(client, (namespace,), name)
        text = await _log(client, namespace, name)
        if not text and found is None:
            raise click.ClickException(f'no logs found for cluster "{name}" in namespace "{namespace}"')
        if found is not None:
            click.echo(printable(await diagnose(client, found)))
        click.echo(printable(text), nl=False)
        if follow:
            await _follow(client, namespace, name, text, lambda new: click.echo(printable(new), nl=False))

    ask(kubeconfig, lambda client, _here: show(client))


async def _follow(client: Client, namespace: str, name: str, shown: str, say: Callable[[str], None]) -> None:
    """Entries are appended, and the oldest ones are dropped above the size limit."""
    while True:
        exists = await _exists(client, namespace, name)
        text = await _log(client, namespace, name) if exists else shown
        say(_appended(shown, text))
        if not exists:
            return
        shown = text
        await asyncio.sleep(POLL_SECONDS)


def _appended(shown: str, text: str) -> str:
    """The lines of `text` after the last line that was shown."""
    if text.startswith(shown):
        return text.removeprefix(shown)
    lines, last = text.splitlines(keepends=True), shown.splitlines(keepends=True)[-1:]
    known = [number for number, line in enumerate(lines) if [line] == last]
    return "".join(lines[known[-1] + 1 :]) if known else text


async def _exists(client: Client, namespace: str, name: str) -> bool:
    try:
        await client.get(PROVISIONING_CLUSTER.resource, name, namespace=namespace)
    except (NotFound, Forbidden):  # The rights of its owners end with the cluster.
        return False
    return True


async def _log(client: Client, namespace: str, name: str) -> str:
    """Logs, oldest first. The archive is never behind the log of the cluster."""
    try:
        labels = f"{ARCHIVE_LABEL}={log.ARCHIVED}"
        kept = (await client.list_all(CONFIG_MAP.resource, namespace=ARCHIVE_NAMESPACE, labels=labels)).items
    except Forbidden:
        id_ = await cluster_id(client, namespace, name)
        return await log_of(client, id_) if id_ else ""
    its = [each for each in kept if log.cluster_of(each) == (namespace, name)]
    return "".join(str((each.get("data") or {}).get(log.LOG, "")) for each in sorted(its, key=_created))


def _created(kept: Object) -> str:
    return str(kept["metadata"]["creationTimestamp"])
