"""Request an operation, and print its progress until it has ended."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import click

from herder.api.management.names import DEFAULT_WORKSPACE
from herder.api.rke.operations import (
    AGENTS,
    AUTHORITIES,
    CERTIFICATES,
    ENCRYPTION_KEYS,
    RESTORE,
    SNAPSHOT,
    active_run,
    set_request,
)
from herder.app.host.process import wall_clock
from herder.cli.client import ask
from herder.cli.cluster.options import check_provisioned, edit, existing_cluster, interruptible, print_line, time_limit
from herder.cli.cluster.progress import (
    STALLED_SECONDS,
    ClusterNotFound,
    ClusterProgress,
    Say,
    wait_for_change,
    watch_progress,
)
from herder.cli.get import print_data
from herder.cli.operations.estimate import estimate
from herder.cli.operations.lookup import control_plane_of
from herder.cli.operations.requests import (
    Request,
    is_replaced,
    last_generation,
    operation_data,
    outcome_of,
    progress_message,
    run_of,
    title_of,
)
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Object

_ACTIONS = {
    SNAPSHOT: "take snapshots",
    RESTORE: "restore it",
    CERTIFICATES: "rotate its certificates",
    AUTHORITIES: "rotate its certificate authorities",
    ENCRYPTION_KEYS: "rotate its encryption keys",
    AGENTS: "redeploy its node agents",
}
output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["json", "yaml"]),
    help="Print the operation as json or yaml, and progress on standard error.",
)


def run_operation(
    kubeconfig: str | None,
    namespace: str,
    name: str,
    kind: str,
    fields: Object,
    *,
    wait: bool,
    timeout: float,
    output: str | None,
    hint: str = "",
) -> None:
    """Request an operation and wait until it has ended. `hint` is printed after its success.

    `output`: print the operation at the end, also one that has failed.
    """
    accepted: list[Request] = []
    say = partial(print_line, err=bool(output))

    async def run(client: Client) -> None:
        request, written = await _request(client, namespace, name, kind, fields)
        accepted.append(request)
        say(f"cluster {name}: {request.title} is requested")
        try:
            if wait:
                await wait_for_operation(client, namespace, name, request, timeout, say, written=written)
        except OperationFailed:
            await show(client, request)
            raise
        await show(client, request)
        if hint:
            say(hint)

    async def show(client: Client, request: Request) -> None:
        if output:
            cluster = await existing_cluster(client, namespace, name)
            print_data(operation_data(await control_plane_of(client, cluster), request), output)

    again = wait_command(namespace, name)
    title = f"The {title_of(kind)}"
    with interruptible(title, lambda: again if accepted else ""):
        ask(kubeconfig, lambda client, _here: run(client))


async def _request(client: Client, namespace: str, name: str, kind: str, fields: Object) -> tuple[Request, int]:
    """Write the request; returns it, and the generation of the Cluster that has it."""
    cluster = await existing_cluster(client, namespace, name)
    check_provisioned(name, cluster, _ACTIONS[kind])
    control_plane = await control_plane_of(client, cluster)
    generation = 0

    def mutate(cluster: Object) -> None:
        nonlocal generation
        check_provisioned(name, cluster, _ACTIONS[kind])
        generation = last_generation(cluster, control_plane, kind) + 1
        set_request(cluster, kind, {**fields, "generation": generation})

    written = await edit(client, namespace, name, mutate)
    return Request(kind, generation), int(written["metadata"].get("generation") or 0)


async def wait_for_operation(
    client: Client,
    namespace: str,
    name: str,
    request: Request,
    timeout: float,
    say: Say = print_line,
    *,
    written: int = 0,
) -> None:
    """Print progress until the operation has ended; raises its message if it has failed."""
    async with time_limit(name, timeout, wait_command(namespace, name)):
        try:
            await _follow(client, namespace, name, request, written, say)
        except ClusterNotFound:
            raise click.ClickException(f'cluster "{name}" not found in namespace {namespace}') from None
    say(f"cluster {name}: {request.title} has finished")


def wait_command(namespace: str, name: str) -> str:
    place = "" if namespace == DEFAULT_WORKSPACE else f" -n {namespace}"
    return f"herder operations {name}{place} --wait"


async def _follow(client: Client, namespace: str, name: str, request: Request, written: int, say: Say) -> None:
    log = OperationLog(request, say)
    async with watch_progress(client, namespace, name) as (progress, watches):
        while not log.has_ended(progress):
            log.print(progress)
            if progress.is_deleted:
                raise click.ClickException(f"cluster {name} was deleted before the {request.title} has ended")
            if is_replaced(progress.cluster, progress.control_plane, request, written):
                raise click.ClickException(
                    f"cluster {name}: the {request.title} has not started: another request has replaced it; "
                    f"see: herder operations {name} -n {namespace}"
                )
            stalled = "" if active_run(progress.control_plane) else progress.stalled_reason
            if not await wait_for_change(progress, watches, STALLED_SECONDS if stalled else None):
                raise click.ClickException(f"cluster {name}: the {request.title} cannot start: {stalled}")


class OperationFailed(click.ClickException):
    """An operation has ended, and has failed."""


@dataclass
class OperationLog:
    """Prints each phase of an operation once, and what it waits for whenever that changes."""

    request: Request
    say: Say
    _phase: str = ""
    _waiting: str = ""

    def has_ended(self, progress: ClusterProgress) -> bool:
        outcome = outcome_of(progress.control_plane, self.request)
        if outcome is not None and outcome.has_failed:
            why = outcome.message or "no cause is recorded"
            raise OperationFailed(f"{self.request.title} has failed: {why}")
        run = run_of(progress.control_plane, self.request) if outcome is not None else None
        if run is not None and run.skipped:
            self.say(f"  {run.skipped_message}")
        return outcome is not None

    def print(self, progress: ClusterProgress) -> None:
        phase, waiting = self._state(progress)
        if phase and phase != self._phase:
            found = estimate(progress.control_plane, wall_clock())
            self.say(f"  {phase}" + (f", {found}" if found is not None and found.remaining is not None else ""))
        if waiting and waiting != self._waiting:
            self.say(f"  {waiting}")
        self._phase, self._waiting = phase, waiting

    def _state(self, progress: ClusterProgress) -> tuple[str, str]:
        """The phase, and what it waits for."""
        run, other = run_of(progress.control_plane, self.request), active_run(progress.control_plane)
        if run is not None:
            attempt = f", attempt {run.attempt}" if run.attempt > 1 else ""
            leader = f" (leader: machine {run.leader})" if run.leader else ""
            return f"phase {run.phase}{attempt}{leader}", progress_message(progress.control_plane)
        if other is not None:
            return f"waiting until the {title_of(other.kind)} {other.generation} has ended", ""
        return "", progress.waiting_for()
