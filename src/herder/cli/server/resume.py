"""`herder resume cluster`: compare an observe-only cluster with what its Nodes report, and manage it again."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import click

from herder.api.capi.kinds import CLUSTER, MACHINE, NODE, SECRET
from herder.api.capi.names import kubeconfig_secret
from herder.api.capi.nodes import NODE_RECORD
from herder.api.management.differences import (
    OPERATION_REASONS,
    ClusterState,
    Difference,
    differences,
    observed_version,
)
from herder.api.management.dropped_operations import dropped_status, replaced_requests
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.observe_only import OBSERVE_ONLY, mark_of
from herder.api.rke import names
from herder.api.rke.kinds import CONTROL_PLANE, PLAN_SECRET
from herder.app.host.paths import kubeconfig_option, workspace_option
from herder.app.host.process import wall_clock
from herder.cli.client import ask
from herder.cli.cluster.options import TRIES, edit, namespace_flag, print_line
from herder.cli.examples import examples
from herder.cli.get import print_data
from herder.cli.resources import ResourceGroup
from herder.cli.table import print_table
from herder.engine.client.client import Client
from herder.engine.client.kubeconfig import KubeconfigError, RestConfig, parse_untrusted
from herder.engine.meta.errors import Conflict, Forbidden, NotFound, StatusError
from herder.engine.meta.kinds import Kind, Object
from herder.engine.meta.printable import printable

EXAMPLES = examples(
    "herder resume cluster meadow --diff",
    "herder resume cluster meadow",
    "herder resume cluster meadow --accept-observed",
    "herder resume cluster meadow --drop-operations",
    "herder resume cluster --all",
)
NODES_SECONDS = 120.0
MAX_NODES, MAX_NODES_BYTES = 10_000, 64 << 20
"""Most Nodes of a cluster, and their size: the same limits as in the manager."""
_COLUMNS = ("CLUSTER", "DIFFERENCE", "OBJECT", "BLOCKS", "MESSAGE")


@click.group(cls=ResourceGroup, epilog=EXAMPLES)
def command() -> None:
    """Manage clusters again after the manager was restored from a backup."""


@dataclass(frozen=True)
class Choices:
    """What the user accepts."""

    diff: bool
    accept_observed: bool
    ignore_differences: bool
    drop_operations: bool
    continue_operations: bool

    def accepts(self, difference: Difference, version: str) -> bool:
        """Differences about operations are not ignored with the others: an old restore would replace newer data."""
        if difference.reason in OPERATION_REASONS:
            return self.drop_operations or self.continue_operations
        return self.ignore_differences or bool(version and difference.reason == "NewerVersion")


@command.command(epilog=EXAMPLES)
@click.argument("name", required=False)
@workspace_option
@click.option("--all", "everything", is_flag=True, help="Resume all observe-only clusters in all namespaces.")
@click.option("--diff", is_flag=True, help="List the differences from what the Nodes and agents report, and exit.")
@click.option(
    "--accept-observed",
    is_flag=True,
    help="Raise spec.kubernetesVersion to the highest version that a server of the cluster runs.",
)
@click.option(
    "--ignore-differences",
    is_flag=True,
    help="Resume although differences remain. Health checks may replace machines whose Nodes are gone, and deletions "
    "from before the backup continue.",
)
@click.option(
    "--drop-operations",
    is_flag=True,
    help="End the operation that was in progress at the backup as Failed, and do not carry out requests of operations "
    "from before the backup.",
)
@click.option(
    "--continue-operations",
    is_flag=True,
    help="Continue the operation that was in progress at the backup, and carry out requests from before the backup. "
    "An etcd restore replaces all data of the cluster.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["yaml", "json"]),
    help="With --diff: output format yaml or json. Default: table.",
)
@kubeconfig_option
def cluster(
    name: str | None,
    namespace: str,
    everything: bool,
    diff: bool,
    accept_observed: bool,
    ignore_differences: bool,
    drop_operations: bool,
    continue_operations: bool,
    output: str | None,
    kubeconfig: str | None,
) -> None:
    """Compare the observe-only cluster NAME with what its Nodes report, and resume it.

    A manager that was restored from a backup changes nothing in its clusters until they are resumed. The command
    refuses to resume a cluster if the manager could delete, replace or downgrade something because its data is old. The
    exit status is 0 if all clusters are resumed, and 1 if differences block one.
    """
    if bool(name) == everything:
        raise click.UsageError("pass either the NAME of a cluster or --all")
    if drop_operations and continue_operations:
        raise click.UsageError("--drop-operations and --continue-operations are mutually exclusive")
    choices = Choices(diff, accept_observed, ignore_differences, drop_operations, continue_operations)

    async def run(client: Client, here: RestConfig) -> bool:
        chosen = await _marked(client) if everything else [await _named(client, namespace, name or "")]
        found = [(each, await _compare(client, here, each)) for each in chosen]
        if diff:
            _print_differences(found, output)
            return True
        return all([await _resume(client, target, state, choices) for target, state in found])

    if not ask(kubeconfig, run):
        raise click.exceptions.Exit(1)


# --- clusters ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A cluster: its provisioning Cluster, or a Cluster API Cluster without one."""

    kind: Kind
    obj: Object

    @property
    def namespace(self) -> str:
        return str(self.obj["metadata"]["namespace"])

    @property
    def name(self) -> str:
        return str(self.obj["metadata"]["name"])

    @property
    def id(self) -> str:
        return str((self.obj.get("status") or {}).get("clusterName") or "") if self.kind is PROVISIONING_CLUSTER else ""

    @property
    def flags(self) -> str:
        return f"{self.name}{namespace_flag(self.namespace)}"


async def _named(client: Client, namespace: str, name: str) -> Target:
    for kind in (PROVISIONING_CLUSTER, CLUSTER):
        obj = await _get(client, kind, name, namespace)
        if obj is not None:
            return Target(kind, obj)
    listing = f"herder get {PROVISIONING_CLUSTER.resource.group_resource} -A"
    raise click.ClickException(f"cluster {name} not found in namespace {namespace}; list all clusters with: {listing}")


async def _marked(client: Client) -> list[Target]:
    """All observe-only clusters. Most Cluster API Clusters belong to a provisioning Cluster of the same name."""
    found: dict[tuple[str, str], Target] = {}
    for kind in (CLUSTER, PROVISIONING_CLUSTER):
        try:
            objects = (await client.list_all(kind.resource)).items
        except NotFound:
            continue
        targets = (Target(kind, each) for each in objects if mark_of(each) is not None)
        found |= {(each.namespace, each.name): each for each in targets}
    return [found[key] for key in sorted(found)]


async def _compare(client: Client, here: RestConfig, target: Target) -> ClusterState:
    where, labels = target.namespace, f"{names.CLUSTER_NAME}={target.name}"
    nodes, unreachable = await _nodes(client, here, target)
    return ClusterState(
        target.obj,
        await _get(client, CONTROL_PLANE, target.name, where),
        await _list(client, MACHINE, where, labels=labels),
        await _list(client, PLAN_SECRET, where, labels=labels, fields=PLAN_SECRET.fields),
        nodes,
        unreachable,
    )


async def _nodes(client: Client, here: RestConfig, target: Target) -> tuple[list[Object] | None, str]:
    """Read the Nodes through the tunnel of the cluster's agent. Kubelets write them, so only known fields are kept."""
    from herder.engine.client.http import HttpTransport

    if target.kind is not PROVISIONING_CLUSTER:
        return [], ""  # Cluster API itself compares Nodes and Machines
    if not target.id:
        return None, "it has no management Cluster"
    try:
        downstream = Client(HttpTransport(await _connection(client, here, target)))
    except KubeconfigError as error:
        return None, str(error)
    try:
        return await _read_nodes(downstream), ""
    except TimeoutError:
        return None, f"the list of its Nodes is not complete after {NODES_SECONDS:g} s"
    except (StatusError, OSError) as error:
        return None, printable(str(error), 200)
    finally:
        await downstream.close()


async def _read_nodes(downstream: Client) -> list[Object]:
    """A hostile cluster could send Nodes, or pages, without end: others would not be resumed after it."""
    async with asyncio.timeout(NODES_SECONDS):
        listed = await downstream.list_all(
            NODE.resource, transform=NODE_RECORD.project, max_items=MAX_NODES, max_bytes=MAX_NODES_BYTES
        )
    return listed.items


async def _connection(client: Client, here: RestConfig, target: Target) -> RestConfig:
    """The cluster's kubeconfig, for administrators by certificate, who are not users of the gateway; else the proxy."""
    with suppress(NotFound, Forbidden):
        secret = await client.get(SECRET.resource, kubeconfig_secret(target.name), namespace=target.namespace)
        text = base64.b64decode((secret.get("data") or {}).get("value") or "")
        return parse_untrusted(text.decode(errors="replace"))
    return replace(here, server=f"{here.server}/k8s/clusters/{target.id}")


async def _get(client: Client, kind: Kind, name: str, namespace: str) -> Object | None:
    try:
        return await client.get(kind.resource, name, namespace=namespace)
    except NotFound:
        return None


async def _list(client: Client, kind: Kind, namespace: str, *, labels: str, fields: str = "") -> list[Object]:
    try:
        return (await client.list_all(kind.resource, namespace=namespace, labels=labels, fields=fields)).items
    except NotFound:
        return []


# --- differences ------------------------------------------------------------------------------------------------------


def _print_differences(found: Sequence[tuple[Target, ClusterState]], output: str | None) -> None:
    if output is not None:
        items = [
            {
                "cluster": target.name,
                "namespace": target.namespace,
                "observeOnly": mark_of(target.obj) is not None,
                "observedVersion": observed_version(state),
                "differences": [each._asdict() for each in differences(state)],
            }
            for target, state in found
        ]
        print_data({"clusters": items}, output)
        return
    rows = [_cells(target, each) for target, state in found for each in differences(state)]
    if rows:
        print_table(_COLUMNS, rows)
    same = [target.name for target, state in found if not differences(state)]
    if same or not found:
        print_line(f"No differences: {', '.join(same)}" if same else "No cluster is observe-only", err=True)


def _cells(target: Target, difference: Difference) -> tuple[str, ...]:
    blocks = "yes" if difference.blocks else "no"
    return (target.name, difference.reason, difference.subject, blocks, difference.message)


# --- resume -----------------------------------------------------------------------------------------------------------


async def _resume(client: Client, target: Target, state: ClusterState, choices: Choices) -> bool:
    """Resume a cluster; return False if differences block it."""
    if mark_of(target.obj) is None:
        print_line(f"cluster {target.name} is not observe-only")
        return True
    found = differences(state)
    for each in found:
        print_line(f"  {each.subject}: {each.message}")
    version = observed_version(state) if choices.accept_observed else ""
    blocking = [each for each in found if each.blocks and not choices.accepts(each, version)]
    if blocking:
        print_line(_advice(target, state, blocking), err=True)
        return False
    if version:
        await edit(client, target.namespace, target.name, lambda obj: obj["spec"].update(kubernetesVersion=version))
        print_line(f"cluster {target.name}: spec.kubernetesVersion raised from {state.wanted} to {version}")
    if choices.drop_operations:
        await _drop_operations(client, target)
    await _unmark(client, target)
    print_line(f"cluster {target.name} is managed again")
    return True


def _advice(target: Target, state: ClusterState, blocking: Sequence[Difference]) -> str:
    flags = []
    if any(each.reason == "NewerVersion" for each in blocking) and observed_version(state):
        flags.append(f"--accept-observed to raise spec.kubernetesVersion to {observed_version(state)}")
    if any(each.reason in OPERATION_REASONS for each in blocking):
        flags.append("--drop-operations to end and drop operations from before the backup")
    if any(each.reason not in ("NewerVersion", *OPERATION_REASONS) for each in blocking):
        flags.append("--ignore-differences to resume anyway")
    count = f"{len(blocking)} difference{'s' if len(blocking) > 1 else ''}"
    return f"Error: cluster {target.name} stays observe-only: {count} must be accepted; pass {', and '.join(flags)}"


async def _drop_operations(client: Client, target: Target) -> None:
    """Drop requests while the cluster is observe-only: the planner must not see them without the mark.

    The status takes them as carried out. The controllers write it too, so it must be the one that was read.
    """
    for attempt in range(TRIES):
        found = await _get(client, CONTROL_PLANE, target.name, target.namespace)
        changes = dropped_status(target.obj, found, wall_clock()) if found is not None else {}
        if found is None or not changes:
            return
        try:
            if spec := replaced_requests(target.obj, found):
                found = await _patch(client, found, {"spec": spec}, "")
            await _patch(client, found, {"status": changes}, "status")
        except Conflict:
            if attempt == TRIES - 1:
                raise
            continue
        print_line(f"cluster {target.name}: operations from before the backup are dropped")
        return


async def _patch(client: Client, control_plane: Object, patch: Object, subresource: str) -> Object:
    meta = control_plane["metadata"]
    locked = {"metadata": {"resourceVersion": meta["resourceVersion"]}, **patch}
    return await client.patch(
        CONTROL_PLANE.resource, meta["name"], locked, namespace=meta["namespace"], subresource=subresource
    )


async def _unmark(client: Client, target: Target) -> None:
    """Remove the mark from the provisioning Cluster last: while it has one, the command can be repeated."""
    patch = {"metadata": {"annotations": {OBSERVE_ONLY: None}}}
    objects = [(MANAGEMENT_CLUSTER, target.id, "")] if target.id else []
    objects += [(CLUSTER, target.name, target.namespace)]
    objects += [(PROVISIONING_CLUSTER, target.name, target.namespace)] if target.kind is PROVISIONING_CLUSTER else []
    for kind, name, namespace in objects:
        try:
            await client.patch(kind.resource, name, patch, namespace=namespace)
        except NotFound:
            continue
