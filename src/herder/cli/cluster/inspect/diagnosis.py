"""One line that says why a cluster is not ready, for `herder describe` and `herder logs`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from herder.api.capi.conditions import find, is_true
from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import is_deleting
from herder.api.management import clusters
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.observe_only import mark_of, message
from herder.api.rke import names
from herder.api.rke.machines.removal import REMOVED
from herder.cli.cluster.inspect.failures import machine_failure
from herder.cli.cluster.owned import is_kind, objects_of
from herder.cli.cluster.progress import STEPS
from herder.engine.client.client import Client
from herder.engine.meta.errors import Forbidden, NotFound
from herder.engine.meta.kinds import Object

IMPORTED_STEPS = (clusters.CREATED, clusters.CONNECTED, clusters.READY)


async def find_cluster(client: Client, namespaces: Sequence[str], name: str) -> Object | None:
    """The provisioning Cluster in the first namespace that has it and that the caller may read."""
    for namespace in namespaces:
        with suppress(NotFound, Forbidden):
            return await client.get(PROVISIONING_CLUSTER.resource, name, namespace=namespace)
    return None


async def diagnose(client: Client, cluster: Object) -> str:
    """Read the machines of a provisioning Cluster and say why it is not ready."""
    machines = await _machines(client, cluster) if clusters.is_provisioned_here(cluster) else []
    return summary(cluster, machines)


async def _machines(client: Client, cluster: Object) -> list[Object]:
    meta, labels = cluster["metadata"], f"{names.CLUSTER_NAME}={cluster['metadata']['name']}"
    try:
        return (await client.list_all(MACHINE.resource, namespace=meta["namespace"], labels=labels)).items
    except NotFound:
        return []
    except Forbidden:  # owners read them through the manager
        with suppress(NotFound, Forbidden):
            id_ = str((cluster.get("status") or {}).get("clusterName") or "")
            return [each for each in await objects_of(client, id_) if is_kind(each, MACHINE)] if id_ else []
        return []


def summary(cluster: Object, machines: Sequence[Object]) -> str:
    name = cluster["metadata"]["name"]
    mark = mark_of(cluster)
    if mark is not None:
        return f"cluster {name} is {message(name, mark)}"
    if is_deleting(cluster):
        why = str((find(cluster, REMOVED) or {}).get("message") or "its objects are deleted")
        return f"cluster {name} is being deleted: {_one_line(why)}"
    why = _stalled(cluster) or _failing(machines) or _waiting(cluster)
    return f"cluster {name} is not ready: {_one_line(why)}" if why else f"cluster {name} is ready"


def _stalled(cluster: Object) -> str:
    return str((find(cluster, clusters.STALLED) or {}).get("message", "")) if is_true(cluster, clusters.STALLED) else ""


def _failing(machines: Sequence[Object]) -> str:
    failed = [(machine["metadata"]["name"], why) for machine in machines if (why := machine_failure(machine))]
    if not failed:
        return ""
    name, why = min(failed)
    others = f" ({len(failed) - 1} more machines have failed)" if len(failed) > 1 else ""
    return f"machine {name}: {why}{others}"


def _waiting(cluster: Object) -> str:
    steps = (*STEPS, clusters.READY) if clusters.is_provisioned_here(cluster) else IMPORTED_STEPS
    pending = [known for step in steps if (known := find(cluster, step)) and known["status"] != "True"]
    messages = [str(known["message"]) for known in pending if known.get("message")]
    if messages:
        return messages[0]
    has_started = any(find(cluster, step) for step in steps)
    return (
        f"{pending[0]['type']} is {pending[0]['status']}"
        if pending
        else ""
        if has_started
        else "no controller has seen it yet"
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())
