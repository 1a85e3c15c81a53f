"""`herder operations abort`: abort the operation in progress, before its point of no return."""

from __future__ import annotations

import click

from herder.api.rke.etcd.restore import restores_spec
from herder.api.rke.names import ABORT_OPERATION
from herder.api.rke.operations import ABORTED, NO_RETURN, RESTORE, Run, active_run, is_abortable
from herder.cli.client import ask
from herder.cli.cluster.options import (
    check_provisioned,
    edit,
    existing_cluster,
    interruptible,
    operation_options,
    print_line,
)
from herder.cli.examples import examples
from herder.cli.operations.lookup import control_plane_of
from herder.cli.operations.progress import wait_command, wait_for_operation
from herder.cli.operations.requests import Request
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Object


@click.command(epilog=examples("herder operations abort meadow", "herder operations abort meadow --no-wait"))
@operation_options
def abort(name: str, namespace: str, wait: bool, timeout: float, kubeconfig: str | None) -> None:
    """Abort the operation of CLUSTER that is in progress, and wait until it has ended.

    Machines get their plans back. After its point of no return, an operation cannot be aborted. If a restore has
    changed the version in the spec of the Cluster, the spec gets the version of the machines again.
    """

    async def run(client: Client) -> None:
        cluster = await existing_cluster(client, namespace, name)
        check_provisioned(name, cluster, "operate it")
        control_plane = await control_plane_of(client, cluster)
        found = _abortable_run(name, control_plane)
        await _request(client, namespace, name, control_plane, found)
        title = Request(found.kind, found.generation).title
        print_line(f"cluster {name}: abort of the {title} is requested")
        if wait:
            await _wait(client, namespace, name, found, timeout)

    with interruptible("The operation", lambda: wait_command(namespace, name) if wait else ""):
        ask(kubeconfig, lambda client, _here: run(client))


def _abortable_run(name: str, control_plane: Object | None) -> Run:
    run = active_run(control_plane)
    if run is None:
        raise click.ClickException(f"cluster {name} has no operation in progress")
    if is_abortable(run):
        return run
    title = Request(run.kind, run.generation).title
    why = f"it ends already after: {run.message}" if run.message else NO_RETURN.get(run.kind, "")
    raise click.ClickException(f"the {title} cannot be aborted in phase {run.phase}: {why}")


async def _request(client: Client, namespace: str, name: str, control_plane: Object | None, run: Run) -> None:
    status: Object = (control_plane or {}).get("status") or {}
    applied = str((status.get("appliedSpec") or {}).get("kubernetesVersion") or "")
    puts_back = run.kind == RESTORE and restores_spec(status.get(RESTORE)) and bool(applied)

    def mutate(cluster: Object) -> None:
        annotations = cluster["metadata"].get("annotations") or {}
        cluster["metadata"]["annotations"] = {**annotations, ABORT_OPERATION: run.id}
        if puts_back:
            cluster["spec"]["kubernetesVersion"] = applied

    await edit(client, namespace, name, mutate)


async def _wait(client: Client, namespace: str, name: str, run: Run, timeout: float) -> None:
    request = Request(run.kind, run.generation)
    try:
        await wait_for_operation(client, namespace, name, request, timeout)
    except click.ClickException as error:
        if not error.message.endswith(ABORTED):
            raise
        print_line(f"cluster {name}: {request.title} was aborted")
    else:
        raise click.ClickException(f"the {request.title} has finished before it could be aborted")
