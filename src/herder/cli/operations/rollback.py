"""`herder rollback`: undo the last restore, or the last change of the version."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import click

from herder.api.rke.etcd.restore import VERSION
from herder.api.rke.operations import (
    AUTHORITIES,
    CERTIFICATES,
    ENCRYPTION_KEYS,
    FAILED,
    RESTORE,
    Run,
    active_run,
)
from herder.api.times import parse_time
from herder.app.host.process import wall_clock
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
    """What undoes the last upgrade or restore; or why nothing does.

    Later operations that cannot be undone, such as rotations, do not hide it. A restore that has failed before it had
    a snapshot has changed nothing.
    """
    run, record = Run.of(control_plane), ((control_plane or {}).get("status") or {}).get("rollback") or {}
    if active_run(control_plane) is not None and run is not None:
        return f"the {Request(run.kind, run.generation).title} is in progress; wait for its end, or abort it"
    upgraded_at, failures = parse_time(str(record.get("time") or "")), []
    for restore in _restores(control_plane):
        if upgraded_at is not None and restore.started_at <= upgraded_at:
            break
        found = _undo_operation(restore)
        if restore.phase != FAILED or restore.inverse:
            return found
        failures.append(str(found))
    if record.get("snapshot"):
        change = f"the upgrade from {record.get('from')} to {record.get('to')}"
        return Rollback(change, str(record["snapshot"]), VERSION, str(record.get("snapshotTime") or ""))
    if record:
        change = f"the upgrade from {record.get('from')} to {record.get('to')} cannot be undone"
        return f"{change}: {record.get('message') or 'it has no snapshot'}"
    if failures:
        return failures[0]
    if run is not None and run.kind in (CERTIFICATES, AUTHORITIES, ENCRYPTION_KEYS):
        return str(_undo_operation(run))
    return "no operation and no change of the version is recorded that could be undone"


def _restores(control_plane: Object | None) -> Iterator[Run]:
    """Restores that have ended, the last one first. Earlier managers did not record it in the history."""
    status: Object = (control_plane or {}).get("status") or {}
    recorded = [*(status.get("operationHistory") or ()), *([status["operation"]] if status.get("operation") else [])]
    for each in reversed(recorded):
        run = Run.of({"status": {"operation": each}})
        if run is not None and run.kind == RESTORE:
            yield run


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
    then are lost, so that --accept-data-loss-since is required. Rotations cannot be undone; the upgrade or restore
    before them can.
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
