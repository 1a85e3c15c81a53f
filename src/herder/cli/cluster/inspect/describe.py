"""`herder describe cluster`: status of a cluster, its control plane and workers, as a tree."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress

import click

from herder.api.capi.contract import definition_name, external_kind, reference_group
from herder.api.capi.core import CRD
from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, MACHINE_POOL, MACHINE_SET
from herder.api.capi.names import CLUSTER_NAME
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.operations import Run
from herder.app.host.paths import kubeconfig_option, namespace_option, search_namespaces
from herder.app.host.process import wall_clock
from herder.cli.client import connect
from herder.cli.cluster.inspect.certificates import certificate_lines, certificates_as_data, expiring_certificates
from herder.cli.cluster.inspect.diagnosis import diagnose, find_cluster
from herder.cli.cluster.inspect.tree import ClusterObjects, Referenced, as_data, cluster_tree, conditions_tree, render
from herder.cli.cluster.owned import cluster_id, is_kind, objects_of
from herder.cli.examples import examples
from herder.cli.operations.requests import agents_line, operation_line
from herder.cli.resources import ResourceGroup
from herder.cli.terminal import escaped
from herder.engine.client import kubeconfig as kubeconfigs
from herder.engine.client.client import Client
from herder.engine.meta.errors import Forbidden, NotFound, StatusError, not_found
from herder.engine.meta.kinds import Kind, Object

EXAMPLES = examples(
    "herder describe cluster meadow",
    "herder describe cluster meadow --expand",
    "herder describe cluster meadow -o json",
)


@click.group(cls=ResourceGroup, epilog=EXAMPLES)
def command() -> None:
    """Show the status of a cluster and its machines."""


@command.command(epilog=EXAMPLES)
@click.argument("name")
@namespace_option("the Cluster object")
@click.option(
    "--expand",
    is_flag=True,
    help="Show each Machine on its own line instead of grouping Machines with the same status.",
)
@click.option("-o", "--output", type=click.Choice(["json"]), help="Output format: json. Default: a tree.")
@kubeconfig_option
def cluster(name: str, namespace: str | None, expand: bool, output: str | None, kubeconfig: str | None) -> None:
    """Show the cluster NAME with its control plane, workers and conditions.

    The first line says whether the cluster is ready, and if not, why. The second one shows the operation in progress or
    the last one, such as a snapshot. A third one names machines whose node agents are not those of the manager. The end
    shows which certificates on its machines expire within 30 days, or else when the first one does.
    """
    try:
        connection = connect(kubeconfig)
        namespaces = search_namespaces(namespace, connection.namespace)
        state, objects = asyncio.run(_read_with_state(connection, namespaces, name))
    except (StatusError, kubeconfigs.KubeconfigError) as error:
        raise click.ClickException(str(error)) from error
    tree = cluster_tree(objects, expand=expand) if isinstance(objects, ClusterObjects) else conditions_tree(objects)
    now = wall_clock()
    certificates = expiring_certificates(objects.machines if isinstance(objects, ClusterObjects) else (), now)
    if output == "json":
        run = Run.of(_control_plane(objects))
        shown = certificates_as_data(certificates)
        facts = {"summary": state, "operation": run.to_status() if run else None, "certificates": shown}
        known = {name: value for name, value in facts.items() if value}
        click.echo(json.dumps(known | as_data(tree), indent=2))
    else:
        plane = _control_plane(objects)
        head = [line for line in (state, operation_line(plane, now), agents_line(plane)) if line]
        tail = certificate_lines(certificates, now)
        parts = [part for part in (head, render(tree, now), tail) if part]
        lines = [line for position, part in enumerate(parts) for line in (*([""] if position else []), *part)]
        click.echo("\n".join(map(escaped, lines)))


def _control_plane(objects: ClusterObjects | Object) -> Object | None:
    """The RKEControlPlane; others have no operations."""
    found = objects.control_plane.obj if isinstance(objects, ClusterObjects) and objects.control_plane else None
    return found if found is not None and is_kind(found, CONTROL_PLANE) else None


async def _read_with_state(
    connection: kubeconfigs.RestConfig, namespaces: Sequence[str], name: str
) -> tuple[str, ClusterObjects | Object]:
    """The state of the provisioning Cluster, if there is one, and the objects of Cluster API's Cluster.

    Without the latter, as for an imported cluster or one that has just been created, the provisioning Cluster itself.
    """
    from herder.engine.client.http import HttpTransport

    client = Client(HttpTransport(connection))
    try:
        cluster = await find_cluster(client, namespaces, name)
        if cluster is None:
            return "", await _read(connection, namespaces, name)
        state, namespace = await diagnose(client, cluster), cluster["metadata"]["namespace"]
        with suppress(NotFound):
            return state, await _read(connection, (namespace,), name)
        return state, cluster
    finally:
        await client.close()


async def show(connection: kubeconfigs.RestConfig, namespace: str, name: str) -> list[str]:
    """The tree as lines of text."""
    return render(cluster_tree(await _read(connection, (namespace,), name)), wall_clock())


async def _read(connection: kubeconfigs.RestConfig, namespaces: Sequence[str], name: str) -> ClusterObjects:
    from herder.engine.client.http import HttpTransport

    client = Client(HttpTransport(connection))
    try:
        try:
            return await _read_all(client, namespaces, name)
        except Forbidden:
            # Owners of a cluster read its objects through the manager.
            return await _read_own(client, namespaces, name)
    finally:
        await client.close()


async def _read_all(client: Client, namespaces: Sequence[str], name: str) -> ClusterObjects:
    async def of_cluster(kind: Kind) -> list[Object]:
        page = await client.list_all(kind.resource, namespace=namespace, labels=f"{CLUSTER_NAME}={name}")
        return page.items

    found = await _found(client, namespaces, name)
    namespace = found["metadata"]["namespace"]
    kinds = (MACHINE_DEPLOYMENT, MACHINE_SET, MACHINE_POOL, MACHINE)
    deployments, sets, pools, machines = await asyncio.gather(*map(of_cluster, kinds))
    spec = found.get("spec") or {}
    return ClusterObjects(
        cluster=found,
        infrastructure=await _referenced(client, spec.get("infrastructureRef"), namespace),
        control_plane=await _referenced(client, spec.get("controlPlaneRef"), namespace),
        machine_deployments=deployments,
        machine_sets=sets,
        machine_pools=pools,
        machines=machines,
    )


async def _read_own(client: Client, namespaces: Sequence[str], name: str) -> ClusterObjects:
    objects = await _own_objects(client, namespaces, name)
    found = next((each for each in objects if is_kind(each, CLUSTER)), None)
    if found is None:
        raise not_found(CLUSTER.resource.group_resource, name)

    def of_kind(kind: Kind) -> list[Object]:
        return [each for each in objects if is_kind(each, kind)]

    def referenced(field: str) -> Referenced | None:
        reference = (found.get("spec") or {}).get(field)
        named = (each for each in objects if reference and _is_referenced(each, reference))
        return Referenced(reference, next(named, None), problem="") if reference else None

    return ClusterObjects(
        cluster=found,
        infrastructure=referenced("infrastructureRef"),
        control_plane=referenced("controlPlaneRef"),
        machine_deployments=of_kind(MACHINE_DEPLOYMENT),
        machine_sets=of_kind(MACHINE_SET),
        machine_pools=of_kind(MACHINE_POOL),
        machines=of_kind(MACHINE),
    )


async def _own_objects(client: Client, namespaces: Sequence[str], name: str) -> list[Object]:
    """Objects of the user's cluster in the first namespace that has it."""
    *earlier, last = namespaces
    for namespace in earlier:
        with suppress(NotFound, Forbidden):
            return await objects_of(client, await cluster_id(client, namespace, name))
    return await objects_of(client, await cluster_id(client, last, name))


def _is_referenced(obj: Object, reference: Object) -> bool:
    return (obj.get("kind"), obj["metadata"]["name"]) == (reference.get("kind"), reference.get("name"))


async def _found(client: Client, namespaces: Sequence[str], name: str) -> Object:
    """The Cluster in the first namespace that has it and that the caller may read."""
    *earlier, last = namespaces
    for namespace in earlier:
        with suppress(NotFound, Forbidden):
            return await client.get(CLUSTER.resource, name, namespace=namespace)
    try:
        return await client.get(CLUSTER.resource, name, namespace=last)
    except NotFound:
        where = " or ".join(namespaces)
        raise NotFound(
            f'cluster "{name}" not found in namespace {where}; list all with: herder get clusters -A'
        ) from None


async def _referenced(client: Client, reference: Object | None, namespace: str) -> Referenced | None:
    """Errors are part of the result: a cluster that waits for a missing object is shown as such."""
    if not reference:
        return None
    try:
        definition = await _definition(client, reference)
        known = external_kind(reference, definition)
        if isinstance(known, str):
            return Referenced(reference, None, problem=known)
        kind, contract = known
        return Referenced(reference, await client.get(kind.resource, reference["name"], namespace=namespace), contract)
    except NotFound:
        return Referenced(reference, None, problem="does not exist")
    except Forbidden as error:
        return Referenced(reference, None, problem=str(error))


async def _definition(client: Client, reference: Object) -> Object | None:
    try:
        return await client.get(CRD.resource, definition_name(reference_group(reference), reference["kind"]))
    except NotFound:
        return None
