"""`herder rollback`: undo the last operation, or the last change of the version."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import click

from herder.api.rke.operations import CERTIFICATES, ENCRYPTION_KEYS, RESTORE, Run, active_run
from herder.api.rke.restore import VERSION
from herder.api.times import parse_time
from herder.app.process import wall_clock
from herder.cli.client import ask
from herder.cli.cluster.options import check_provisioned, existing_cluster, operation_options, print_line
from herder.cli.examples import examples
from herder.cli.operations.lookup import control_plane_of, snapshot_named
from herder.cli.operations.progress import output_option, run_operation
from herder.cli.operations.requests import Request
from herder.cli.resources import ResourceGroup
from herder.engine.apiserver.tables.duration import since
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Object
from herder.engine.meta.printable import printable

EXAMPLES = examples(
    "herder rollback cluster meadow",
    "herder rollback cluster meadow --accept-data-loss-since 2026-01-01T12:00:00Z",
)


@dataclass(frozen=True)
class Rollback:
    """A restore that undoes a change."""

    change: str  # what it undoes
    snapshot: str
    mode: str
    time: str  # of the snapshot


def rollback_of(control_plane: Object | None) -> Rollback | str:
    """What undoes the last change; or why nothing does."""
    run, record = Run.of(control_plane), ((control_plane or {}).get("status") or {}).get("rollback") or {}
    if active_run(control_plane) is not None and run is not None:
        return f"the {Request(run.kind, run.generation).title} is in progress; wait for its end, or abort it"
    changed_at = parse_time(str(record.get("time") or ""))
    is_last = run is not None and (changed_at is None or run.started_at > changed_at)
    if run is not None and is_last and run.kind in (RESTORE, CERTIFICATES, ENCRYPTION_KEYS):
        return _undo_operation(run)
    if record.get("snapshot"):
        change = f"the upgrade from {record.get('from')} to {record.get('to')}"
        return Rollback(change, str(record["snapshot"]), VERSION, str(record.get("snapshotTime") or ""))
    if record:
        change = f"the upgrade from {record.get('from')} to {record.get('to')} cannot be undone"
        return f"{change}: {record.get('message') or 'it has no snapshot'}"
    return "no operation and no change of the version is recorded that could be undone"


def _undo_operation(run: Run) -> Rollback | str:
    title, inverse = Request(run.kind, run.generation).title, run.inverse
    if inverse.get("kind") != RESTORE:
        return f"{title}: {inverse.get('message') or run.message or 'nothing is recorded that undoes it'}"
    return Rollback(f"the {title}", inverse["name"], inverse["restoreRKEConfig"], inverse["snapshotTime"])


@click.group(cls=ResourceGroup, epilog=EXAMPLES)
def command() -> None:
    """Undo the last change of a cluster."""


@command.command("cluster", epilog=EXAMPLES)
@operation_options
@output_option
@click.option(
    "--accept-data-loss-since",
    "accepted",
    metavar="TIME",
    help="Accept that all changes in the cluster since TIME are lost. Without it, the command only prints the time.",
)
def cluster(
    name: str,
    namespace: str,
    wait: bool,
    timeout: float,
    kubeconfig: str | None,
    output: str | None,
    accepted: str | None,
) -> None:
    """Undo the last upgrade or restore of CLUSTER by a restore of the snapshot that was taken before it.

    The data of the cluster and its Kubernetes version are those of the snapshot again. All changes in the cluster since
    then are lost, so that --accept-data-loss-since is required. A rotation of keys cannot be undone.
    """

    async def read(client: Client) -> Rollback:
        found = await existing_cluster(client, namespace, name)
        check_provisioned(name, found, "roll it back")
        undo = rollback_of(await control_plane_of(client, found))
        if isinstance(undo, str):
            raise click.ClickException(f"cluster {name} cannot be rolled back: {printable(undo)}")
        await snapshot_named(client, found, undo.snapshot)
        return undo

    undo = ask(kubeconfig, lambda client, _here: read(client))
    check_accepted(undo, accepted, wall_clock())
    print_line(f"cluster {name}: undoing {printable(undo.change)} with snapshot {undo.snapshot}", err=bool(output))
    fields = {"name": undo.snapshot, "restoreRKEConfig": undo.mode}
    run_operation(kubeconfig, namespace, name, RESTORE, fields, wait=wait, timeout=timeout, output=output)


def check_accepted(undo: Rollback, accepted: str | None, now: datetime) -> None:
    """Refuse unless the user has accepted the loss of all changes since the snapshot."""
    taken = parse_time(undo.time)
    if taken is None:
        raise click.ClickException(f"snapshot {undo.snapshot}: its time is not known; use: herder snapshot restore")
    lost = f"all changes in the cluster since {undo.time} ({since(undo.time, now)} ago) are lost"
    again = f"--accept-data-loss-since {undo.time}"
    if accepted is None:
        raise click.ClickException(
            f"undoing {printable(undo.change)} restores a snapshot: {lost}; to accept, pass {again}"
        )
    given = parse_time(accepted)
    if given is None:
        raise click.BadParameter(f"{accepted} is not a time such as {undo.time}", param_hint="--accept-data-loss-since")
    if given > taken:
        raise click.ClickException(f"{accepted} is after the snapshot: {lost}; to accept, pass {again}")
