"""`herder operations`: the operation of a cluster that is in progress, or the last one."""

from __future__ import annotations

from collections.abc import Sequence

import click

from herder.api.capi.conditions import timestamp
from herder.api.rke.operations import Run
from herder.app.host.paths import kubeconfig_option, workspace_option
from herder.app.host.process import wall_clock
from herder.cli.client import ask
from herder.cli.cluster.options import check_provisioned, existing_cluster, interruptible, timeout_option
from herder.cli.examples import examples
from herder.cli.get import print_data
from herder.cli.operations.abort import abort
from herder.cli.operations.estimate import estimate
from herder.cli.operations.lookup import control_plane_of
from herder.cli.operations.progress import wait_command, wait_for_operation
from herder.cli.operations.requests import PENDING, Request, pending_requests, progress_message, title_of
from herder.cli.table import print_table
from herder.engine.apiserver.tables.duration import since
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Object

_COLUMNS = ("OPERATION", "GENERATION", "PHASE", "PROGRESS", "ATTEMPT", "LEADER", "SINCE", "DEADLINE", "MESSAGE")
EXAMPLES = examples(
    "herder operations meadow",
    "herder operations meadow -o json",
    "herder operations meadow --wait --timeout 600",
    "herder operations abort meadow",
)


class OperationsGroup(click.Group):
    """Without a subcommand, the argument is a cluster: `herder operations meadow`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_named = len(args) > 1 and args[0] in self.commands
        if args and args[0] not in ctx.help_option_names and not is_named:
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=OperationsGroup, epilog=EXAMPLES, subcommand_metavar="[abort] CLUSTER")
def command() -> None:
    """Show or abort the operation of a cluster. `herder operations CLUSTER` shows it; see `show` for its options."""


command.add_command(abort)


@command.command(epilog=examples("herder operations show meadow", "herder operations meadow --wait --timeout 600"))
@click.argument("name", metavar="CLUSTER")
@workspace_option
@click.option("--wait", is_flag=True, help="Print progress until all requested operations have ended.")
@timeout_option
@click.option(
    "-o", "--output", type=click.Choice(["json", "yaml"]), help="Output format: json or yaml. Default: table."
)
@kubeconfig_option
def show(name: str, namespace: str, wait: bool, timeout: float, output: str | None, kubeconfig: str | None) -> None:
    """Show the operation of CLUSTER that is in progress, or the last one, and requests that have not started.

    Operations are etcd snapshots, restores and rotations. With --wait, the exit status is 1 if one has failed.
    """
    if wait and output:
        raise click.UsageError("--wait and --output are mutually exclusive")

    async def run(client: Client) -> None:
        cluster = await existing_cluster(client, namespace, name)
        check_provisioned(name, cluster, "operate it")
        control_plane = await control_plane_of(client, cluster)
        if wait:
            await _wait(client, cluster, control_plane, timeout)
        else:
            _show(cluster, control_plane, output)

    with interruptible("The operation", lambda: wait_command(namespace, name) if wait else ""):
        ask(kubeconfig, lambda client, _here: run(client))


async def _wait(client: Client, cluster: Object, control_plane: Object | None, timeout: float) -> None:
    """Wait for the last operation, which may have ended, and for requests that have not started."""
    run, meta = Run.of(control_plane), cluster["metadata"]
    last = [Request(run.kind, run.generation)] if run is not None else []
    for request in (*last, *pending_requests(cluster, control_plane)):
        await wait_for_operation(client, meta["namespace"], meta["name"], request, timeout)
    if not last and not any(pending_requests(cluster, control_plane)):
        _say_none(cluster)


def _show(cluster: Object, control_plane: Object | None, output: str | None) -> None:
    run, pending = Run.of(control_plane), [*pending_requests(cluster, control_plane)]
    if output:
        requests = [{"kind": each.kind, "generation": each.generation} for each in pending]
        found, status = estimate(control_plane, wall_clock()), (control_plane or {}).get("status") or {}
        shown = {
            "operation": status.get("operation") if run else None,
            "progress": found.to_data() if found is not None else None,
            "waitingFor": progress_message(control_plane),
            "pending": requests,
            "history": status.get("operationHistory"),
        }
        data = {name: value for name, value in shown.items() if value}
        print_data(data, output)
    elif run is None and not pending:
        _say_none(cluster)
    else:
        rows = [_cells(run, control_plane)] if run is not None else []
        print_table(_COLUMNS, [*rows, *(_pending_cells(each) for each in pending)])


def _say_none(cluster: Object) -> None:
    click.echo(f"No operation of cluster {cluster['metadata']['name']} found", err=True)


def _cells(run: Run, control_plane: Object | None) -> Sequence[str]:
    found = estimate(control_plane, wall_clock())
    return (
        title_of(run.kind),
        str(run.generation or ""),
        run.phase,
        str(found or ""),
        str(run.attempt),
        run.leader,
        since(timestamp(run.started_at), wall_clock()),
        timestamp(run.deadline) if run.deadline and run.suspended_at is None else "",
        run.message or progress_message(control_plane) or run.skipped_message,
    )


def _pending_cells(request: Request) -> Sequence[str]:
    return title_of(request.kind), str(request.generation), PENDING, "", "", "", "", "", ""
