"""`herder snapshot`: take, list, restore and delete etcd snapshots of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import click

from herder.api.rke.etcd.restore import MODES, NONE
from herder.api.rke.operations import DELETION, FAILED, RESTORE, SNAPSHOT, Run
from herder.app.host.paths import kubeconfig_option, workspace_option
from herder.app.host.process import wall_clock
from herder.cli.client import ask
from herder.cli.cluster.options import check_provisioned, existing_cluster, operation_options, print_line, time_limit
from herder.cli.confirmation import confirm, yes_option
from herder.cli.examples import examples
from herder.cli.get import print_data
from herder.cli.operations.lookup import (
    control_plane_of,
    created_at,
    delete_snapshot,
    file_of,
    snapshot_named,
    snapshots_of,
)
from herder.cli.operations.progress import output_option, run_operation
from herder.cli.table import print_table
from herder.engine.apiserver.tables.duration import since
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Object
from herder.engine.meta.printable import printable

CREATE_EXAMPLES = examples("herder snapshot create meadow", "herder snapshot create meadow -o json")
LIST_EXAMPLES = examples("herder snapshot list meadow", "herder snapshot list meadow -o wide")
RESTORE_EXAMPLES = examples(
    "herder snapshot restore meadow meadow-local-on-demand-1a2b3c",
    "herder snapshot restore meadow meadow-local-on-demand-1a2b3c --mode kubernetesVersion",
    "herder snapshot restore meadow meadow-local-on-demand-1a2b3c --yes --timeout 1800",
)
DELETE_EXAMPLES = examples(
    "herder snapshot delete meadow meadow-local-on-demand-1a2b3c",
    "herder snapshot delete meadow on-demand-node-a-1767225600 on-demand-node-a-1767229200 --yes",
)
list_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["json", "yaml"]),
    help="Print the deleted snapshots as json or yaml, and progress on standard error.",
)
_POLL_SECONDS = 1.0
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_COLUMNS, _WIDE_COLUMNS = ("NAME", "NODE", "AGE", "SIZE", "STATUS"), ("CREATED", "LOCATION", "MESSAGE")


@click.group(
    epilog=examples(
        "herder snapshot create meadow",
        "herder snapshot list meadow",
        "herder snapshot restore meadow meadow-local-on-demand-1a2b3c",
        "herder snapshot delete meadow meadow-local-on-demand-1a2b3c",
    )
)
def command() -> None:
    """Take, list, restore and delete etcd snapshots of a cluster."""


@command.command(epilog=CREATE_EXAMPLES)
@operation_options
@output_option
def create(name: str, namespace: str, wait: bool, timeout: float, kubeconfig: str | None, output: str | None) -> None:
    """Take an etcd snapshot on every etcd machine of CLUSTER.

    The exit status is 0 if all snapshots were saved, 1 after an error or timeout, and 130 after Ctrl-C.
    """
    hint = f"list the snapshots with: herder snapshot list {name} -n {namespace}" if wait else ""
    run_operation(kubeconfig, namespace, name, SNAPSHOT, {}, wait=wait, timeout=timeout, output=output, hint=hint)


# --- list -------------------------------------------------------------------------------------------------------------


@command.command("list", epilog=LIST_EXAMPLES)
@click.argument("name", metavar="CLUSTER")
@workspace_option
@click.option(
    "-o",
    "--output",
    type=click.Choice(["wide", "yaml", "json"]),
    help="Output format: wide, yaml or json. Default: table.",
)
@kubeconfig_option
def list_(name: str, namespace: str, output: str | None, kubeconfig: str | None) -> None:
    """List the etcd snapshots of CLUSTER, newest first."""

    async def read(client: Client) -> list[Object]:
        cluster = await existing_cluster(client, namespace, name)
        check_provisioned(name, cluster, "list its snapshots")
        return await snapshots_of(client, cluster)

    found = ask(kubeconfig, lambda client, _here: read(client))
    if output in ("yaml", "json"):
        _print_list(found, output)
    elif not found:
        click.echo(f"No snapshots of cluster {name} found; take one with: herder snapshot create {name}", err=True)
    else:
        columns = (*_COLUMNS, *_WIDE_COLUMNS) if output == "wide" else _COLUMNS
        print_table(columns, (_cells(each)[: len(columns)] for each in found))


def _print_list(snapshots: Sequence[Object], output: str) -> None:
    for each in snapshots:
        each["metadata"].pop("managedFields", None)
    print_data({"apiVersion": "v1", "kind": "List", "items": [*snapshots]}, output)


def _cells(snapshot: Object) -> list[str]:
    file, created = file_of(snapshot), created_at(snapshot)
    cells = (
        snapshot["metadata"]["name"],
        file.get("nodeName"),
        since(created, wall_clock()),
        _size(file.get("size")),
        "missing" if _is_missing(snapshot) else file.get("status"),
        created,
        file.get("location"),
        file.get("message"),
    )
    return [str(cell or "") for cell in cells]


def _is_missing(snapshot: Object) -> bool:
    return bool((snapshot.get("status") or {}).get("missing"))


def _size(size: object) -> str:
    if not isinstance(size, int) or size < 0:
        return ""
    power = min(max(size.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return f"{size / 1024**power:.1f} {_UNITS[power]}" if power else f"{size} B"


# --- restore ----------------------------------------------------------------------------------------------------------


@command.command(epilog=RESTORE_EXAMPLES)
@operation_options
@click.argument("snapshot")
@output_option
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default=NONE,
    show_default=True,
    help="What to restore besides the data: none, kubernetesVersion, or all (version and configuration).",
)
@yes_option
def restore(
    name: str,
    namespace: str,
    wait: bool,
    timeout: float,
    kubeconfig: str | None,
    snapshot: str,
    output: str | None,
    mode: str,
    yes: bool,
) -> None:
    """Restore the data of CLUSTER from SNAPSHOT, which is the name of a snapshot or of its file.

    All changes since the snapshot are lost. The API server of the cluster is down meanwhile. Without --mode, version
    and configuration of the cluster stay as they are. On a terminal, the command asks for confirmation.
    """

    async def read(client: Client) -> Object:
        cluster = await existing_cluster(client, namespace, name)
        check_provisioned(name, cluster, "restore it")
        return await snapshot_named(client, cluster, snapshot)

    found = ask(kubeconfig, lambda client, _here: read(client))
    _check_restorable(found)
    lost = f"all changes since {printable(_time(found))} are lost"
    confirm(f"Restore cluster {name} in namespace {namespace}? Its API server stops meanwhile, and {lost}.", yes)
    print_line(f"cluster {name}: restoring snapshot {found['metadata']['name']}; {lost}", err=bool(output))
    fields = {"name": found["metadata"]["name"], "restoreRKEConfig": mode}
    run_operation(kubeconfig, namespace, name, RESTORE, fields, wait=wait, timeout=timeout, output=output)


def _check_restorable(snapshot: Object) -> None:
    file, name = file_of(snapshot), snapshot["metadata"]["name"]
    if _is_missing(snapshot):
        message = "no server lists its file any more; restore another one, or take a snapshot to update the list"
        raise click.ClickException(f"snapshot {name}: {message}")
    if file.get("status") == "failed":
        why = file.get("message") or "no cause is recorded"
        raise click.ClickException(f"snapshot {name} has failed and cannot be restored: {why}; restore another one")


def _time(snapshot: Object) -> str:
    created = created_at(snapshot)
    return f"{created} ({since(created, wall_clock())} ago)" if created else "the snapshot"


# --- delete -----------------------------------------------------------------------------------------------------------


@command.command(epilog=DELETE_EXAMPLES)
@operation_options
@click.argument("snapshots", metavar="SNAPSHOT...", nargs=-1, required=True)
@list_option
@yes_option
def delete(
    name: str,
    namespace: str,
    wait: bool,
    timeout: float,
    kubeconfig: str | None,
    snapshots: tuple[str, ...],
    output: str | None,
    yes: bool,
) -> None:
    """Delete snapshots of CLUSTER with their files. SNAPSHOT is the name of a snapshot or of its file.

    The file of a machine that is not reachable is deleted when the machine returns. On a terminal, the command asks for
    confirmation.
    """

    async def read(client: Client) -> tuple[Object, list[Object]]:
        cluster = await existing_cluster(client, namespace, name)
        check_provisioned(name, cluster, "delete its snapshots")
        return cluster, [await snapshot_named(client, cluster, each) for each in dict.fromkeys(snapshots)]

    cluster, found = ask(kubeconfig, lambda client, _here: read(client))
    chosen = ", ".join(each["metadata"]["name"] for each in found)
    confirm(f"Delete {chosen} of cluster {name} in namespace {namespace}, with the files?", yes)

    say = partial(print_line, err=bool(output))

    async def delete_all(client: Client) -> None:
        before = Run.of(await control_plane_of(client, cluster))
        for each in found:
            await delete_snapshot(client, cluster, each)
            say(f"cluster {name}: deletion of snapshot {each['metadata']['name']} is requested")
        if wait:
            async with time_limit(name, timeout, f"herder snapshot list {name} -n {namespace}"):
                await _wait_until_deleted(client, cluster, found, before.id if before else "")
            say(f"cluster {name}: {chosen} deleted")
        if output:
            _print_list(found, output)

    ask(kubeconfig, lambda client, _here: delete_all(client))


async def _wait_until_deleted(client: Client, cluster: Object, chosen: Sequence[Object], last_run: str) -> None:
    uids = {each["metadata"]["uid"] for each in chosen}
    while uids & {each["metadata"]["uid"] for each in await snapshots_of(client, cluster)}:
        run = Run.of(await control_plane_of(client, cluster))
        if run is not None and (run.kind, run.phase) == (DELETION, FAILED) and run.id != last_run:
            raise click.ClickException(f"the files are not deleted: {printable(run.message)}; Herder tries again")
        await asyncio.sleep(_POLL_SECONDS)
