"""Watch a cluster and print its progress: what it waits for, and the phase of each machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import click

from herder.api.capi.conditions import find, is_true
from herder.api.capi.finalizers import blocking_finalizers
from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import is_deleting
from herder.api.machines.failure import needs_user
from herder.api.management.clusters import STALLED
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.management.names import REMOVE_PROVISIONING
from herder.api.management.secret_sync import REFUSED
from herder.api.observe_only import mark_of, message
from herder.api.rke import cluster_spec, names
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.machines.removal import REMOVED
from herder.cli.cluster.inspect.failures import FailureLog, blocked_by, machine_failure
from herder.cli.cluster.owned import deletion_of, is_kind, objects_of
from herder.engine.client.client import Client
from herder.engine.meta.errors import Forbidden, NotFound, StatusError, Unauthorized
from herder.engine.meta.kinds import Kind, Object
from herder.engine.meta.printable import printable

Say = Callable[[str], None]
STALLED_SECONDS = 10.0  # referenced objects may be created right after the cluster
GRANT_SECONDS = 30.0  # until the creator of a cluster has rights on it
RETRY_SECONDS, POLL_SECONDS = 0.5, 1.0
STEPS = ("Created", "RKECluster", "Provisioned", "Updated")  # conditions in the order in which they become True


class ClusterProgress:
    """State of the cluster as watched so far; `changed` is set on each event."""

    def __init__(self) -> None:
        self.cluster: Object | None = None
        self.control_plane: Object | None = None
        self.machines: dict[str, Object] = {}
        self.is_deleted = False
        self.changed = asyncio.Event()

    def observe(self, kind: Kind, name: str, obj: Object | None) -> None:
        if kind is PROVISIONING_CLUSTER:
            self.is_deleted = obj is None and self.cluster is not None
            self.cluster = obj if obj is not None else self.cluster
        elif kind is CONTROL_PLANE:
            self.control_plane = obj
        elif obj is None:
            self.machines.pop(name, None)
        else:
            self.machines[name] = obj
        self.changed.set()

    def observe_deletion(self) -> None:
        self.is_deleted = True
        self.changed.set()

    @property
    def is_ready(self) -> bool:
        """Whether the requested spec has been observed and applied by all controllers."""
        if self.cluster is None or self.control_plane is None:
            return False
        return (
            cluster_spec.is_control_plane_current(self.cluster, self.control_plane)
            and cluster_spec.is_applied(self.control_plane)
            and bool((self.cluster.get("status") or {}).get("ready"))
            and all(is_true(self.control_plane, each) for each in ("Ready", "Reconciled"))
            and all(is_true(self.cluster, each) for each in ("Ready", "Updated"))
            and self._has_machines()
        )

    def _has_machines(self) -> bool:
        assert self.cluster is not None
        pools = (self.cluster["spec"].get("rkeConfig") or {}).get("machinePools") or ()
        wanted = {pool["name"]: pool.get("quantity", 1) for pool in pools}
        for pool, quantity in wanted.items():
            mine = [each for each in self.machines.values() if _label(each, names.POOL_NAME) == pool]
            if len(mine) != quantity or any((each.get("status") or {}).get("phase") != "Running" for each in mine):
                return False
        return True

    @property
    def stalled_reason(self) -> str:
        """Why the current spec cannot be applied; empty if it can, as far as known."""
        if self._observe_only():
            return self._observe_only()
        if unprepared := self._unprepared_machine():
            return unprepared
        if self.cluster is None or not is_true(self.cluster, STALLED):
            return ""
        observe = (self.cluster.get("status") or {}).get("observedGeneration")
        known = find(self.cluster, STALLED) or {}
        return str(known.get("message", "")) if observe == self.cluster["metadata"].get("generation") else ""

    def _observe_only(self) -> str:
        mark = mark_of(self.cluster)
        return message(self.cluster["metadata"]["name"], mark) if self.cluster is not None and mark is not None else ""

    @property
    def needs_command(self) -> bool:
        """Whether the reason names the command that fixes it, instead of a field of the Cluster."""
        return bool(self._observe_only()) or self.is_secret_refused

    @property
    def is_secret_refused(self) -> bool:
        return not self._unprepared_machine() and (find(self.cluster, STALLED) or {}).get("reason") == REFUSED

    def _unprepared_machine(self) -> str:
        """Why no machine is created until a user changes something, such as a missing credential."""
        found = [name for name, machine in sorted(self.machines.items()) if needs_user(machine)]
        return f"machine {found[0]}: {machine_failure(self.machines[found[0]])}" if found else ""

    def lasting_failure(self, failures: FailureLog) -> str:
        pools = ((self.cluster or {}).get("spec", {}).get("rkeConfig") or {}).get("machinePools") or ()
        return failures.lasting(self.machines, {pool["name"]: pool.get("quantity", 1) for pool in pools})

    def waiting_for(self) -> str:
        """Message of the first condition that is not True; of a deleted cluster, what its deletion waits for."""
        if self.cluster is not None and is_deleting(self.cluster):
            return _deletion_message(self.cluster)
        for step in STEPS:
            known = find(self.cluster, step)
            if known is not None and known["status"] != "True" and known.get("message"):
                return str(known["message"])
        return ""

    def machine_failures(self) -> dict[str, str]:
        """Machines that could not be created or whose plan failed."""
        status = {name: machine_failure(machine) for name, machine in sorted(self.machines.items())}
        return {name: why for name, why in status.items() if why}


async def wait_until_ready(client: Client, namespace: str, name: str, say: Say, *, created: bool = False) -> None:
    """`created`: the cluster was just created, and controllers still grant rights to its creator."""
    try:
        await _wait(
            client,
            namespace,
            name,
            say,
            lambda progress: progress.is_ready,
            stall_timeout=STALLED_SECONDS,
            grant_seconds=GRANT_SECONDS if created else 0.0,
        )
    except ClusterNotFound:
        raise click.ClickException(f'cluster "{name}" not found in namespace {namespace}') from None
    except _Stalled as stalled:
        edit = f"kubectl -n {namespace} edit {PROVISIONING_CLUSTER.resource.group_resource} {name}"
        fix = "" if stalled.names_command else f"; fix it with: {edit}"
        raise click.ClickException(f"cluster {name} is stalled: {stalled.why}{fix}") from None
    except _Failing as why:
        retry = f"the manager retries with growing delays; fix the cause, then watch: herder describe cluster {name}"
        raise click.ClickException(f"cluster {name} cannot be provisioned: {why}; {retry} -n {namespace}") from None
    say(f"cluster {name} is ready")


async def wait_until_deleted(client: Client, namespace: str, name: str, say: Say, *, uid: str = "") -> None:
    """`uid` is that of the cluster, whose owners may not read it anymore."""
    with suppress(ClusterNotFound):
        await _wait(client, namespace, name, say, lambda progress: progress.is_deleted, deleted_uid=uid)
    say(f"cluster {name} is deleted")


async def _wait(
    client: Client,
    namespace: str,
    name: str,
    say: Say,
    done: Callable[[ClusterProgress], bool],
    stall_timeout: float | None = None,
    grant_seconds: float = 0.0,
    deleted_uid: str = "",
) -> None:
    async with watch_progress(client, namespace, name, grant_seconds, deleted_uid) as (progress, watches):
        await _print_progress(progress, watches, lambda text: say(printable(text)), done, stall_timeout)


Watches = list[asyncio.Task[None]]


@asynccontextmanager
async def watch_progress(
    client: Client, namespace: str, name: str, grant_seconds: float = 0.0, deleted_uid: str = ""
) -> AsyncIterator[tuple[ClusterProgress, Watches]]:
    """Watch the cluster, its control plane and machines. A watch that ends has failed."""
    progress = ClusterProgress()
    watches = [
        asyncio.ensure_future(_watch_cluster(client, progress, namespace, name, grant_seconds, deleted_uid)),
        asyncio.ensure_future(_watch_machines(client, progress, namespace, name)),
    ]
    try:
        yield progress, watches
    finally:
        for each in watches:
            each.cancel()
        await asyncio.gather(*watches, return_exceptions=True)


async def wait_for_change(progress: ClusterProgress, watches: Watches, timeout: float | None) -> bool:
    """Wait for the next event; False after the timeout. Raises the error of a watch that failed."""
    progress.changed.clear()
    waiting: asyncio.Task[Any] = asyncio.ensure_future(progress.changed.wait())
    try:
        done_tasks, _ = await asyncio.wait([waiting, *watches], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    for each in watches:
        if each.done():
            each.result()
    return bool(done_tasks)


async def _print_progress(
    progress: ClusterProgress,
    watches: Watches,
    say: Say,
    done: Callable[[ClusterProgress], bool],
    stall_timeout: float | None,
) -> None:
    """`stall_timeout`: how long to wait without events while the cluster is stalled."""
    waited, phases, failures = "", dict[str, str](), FailureLog()
    while not done(progress):
        if not await wait_for_change(progress, watches, stall_timeout if progress.stalled_reason else None):
            raise _Stalled(progress.stalled_reason, progress.needs_command)
        for machine, phase in _phases(progress).items():
            if phases.get(machine) != phase:
                say(f"  machine {machine}: {phase}")
        for machine in phases.keys() - progress.machines.keys():
            say(f"  machine {machine}: Deleted")
        phases = _phases(progress)
        for line in failures.lines(progress.machines):
            say(line)
        if stall_timeout is not None and (why := progress.lasting_failure(failures)):
            raise _Failing(why)
        now = progress.waiting_for()
        if now and now != waited:
            say(f"  {now}")
        waited = now


def _deletion_message(cluster: Object) -> str:
    message = str((find(cluster, REMOVED) or {}).get("message") or "")
    blocking = blocking_finalizers(cluster, (REMOVE_PROVISIONING, names.REMOVE_CLUSTER))
    if not blocking:
        return message
    meta, kind = cluster["metadata"], PROVISIONING_CLUSTER.resource.group_resource
    return (
        f"{blocked_by(cluster, blocking)}; remove them with: kubectl -n {meta['namespace']} edit {kind} {meta['name']}"
    )


def _phases(progress: ClusterProgress) -> dict[str, str]:
    return {
        name: (machine.get("status") or {}).get("phase", "Pending")
        for name, machine in sorted(progress.machines.items())
    }


class _Stalled(Exception):
    """The spec cannot be applied; `why` says the reason. `names_command`: it says what to run, too."""

    def __init__(self, why: str, names_command: bool) -> None:
        super().__init__(why)
        self.why, self.names_command = why, names_command


class _Failing(Exception):
    """Machines fail again and again; the message says why."""


class ClusterNotFound(Exception):
    """The cluster did not exist when the watch started."""


async def _watch_cluster(
    client: Client, progress: ClusterProgress, namespace: str, name: str, grant_seconds: float, deleted_uid: str
) -> None:
    """Watch the provisioning Cluster. Controllers grant rights to its creator a moment after it is created."""
    clock = asyncio.get_running_loop().time
    refused_at: float | None = None
    while True:
        try:
            await _watch(client, progress, PROVISIONING_CLUSTER, namespace, fields=f"metadata.name={name}")
        except Forbidden as error:
            if progress.cluster is not None and is_deleting(progress.cluster):
                deleted_uid = progress.cluster["metadata"]["uid"]
            if deleted_uid:
                await _poll_deletion(client, progress, namespace, name, deleted_uid)
                return
            refused_at = refused_at or clock()
            if progress.cluster is not None or clock() - refused_at >= grant_seconds:
                raise click.ClickException(f"cluster {name}: cannot watch it: {error}") from None
        await asyncio.sleep(RETRY_SECONDS)


async def _poll_deletion(client: Client, progress: ClusterProgress, namespace: str, name: str, uid: str) -> None:
    """The rights of owners end when the deletion begins; the manager still reports what it waits for."""
    while True:
        with suppress(OSError):
            try:
                found = await deletion_of(client, namespace, name, uid)
                progress.observe(PROVISIONING_CLUSTER, name, found)
            except NotFound:
                progress.observe_deletion()
                return
        await asyncio.sleep(POLL_SECONDS)


async def _watch_machines(client: Client, progress: ClusterProgress, namespace: str, name: str) -> None:
    """Watch control plane and Machines. Owners without that right poll the manager, which reads them."""
    own, of_cluster = f"metadata.name={name}", f"{names.CLUSTER_NAME}={name}"
    watches = [
        asyncio.ensure_future(_watch_forever(client, progress, CONTROL_PLANE, namespace, fields=own)),
        asyncio.ensure_future(_watch_forever(client, progress, MACHINE, namespace, labels=of_cluster)),
    ]
    try:
        await asyncio.gather(*watches)
    except Forbidden as refusal:
        error = refusal
    finally:
        for each in watches:
            each.cancel()
    _raise_if_canceled()
    clock = asyncio.get_running_loop().time
    while True:
        since = clock()
        if id_ := ((progress.cluster or {}).get("status") or {}).get("clusterName"):
            with suppress(NotFound, OSError):
                await _poll(client, progress, id_, error)
        # A large cluster takes long to read, and is read less often.
        await asyncio.sleep(max(POLL_SECONDS, 10 * (clock() - since)))


def _raise_if_canceled() -> None:
    """A task that is canceled in the same turn of the loop in which its future failed gets only the failure."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _poll(client: Client, progress: ClusterProgress, id_: str, error: BaseException) -> None:
    try:
        objects = await objects_of(client, id_)
    except Forbidden:
        if progress.cluster is not None and is_deleting(progress.cluster):
            return
        raise click.ClickException(f"cannot watch the machines of the cluster: {error}") from None
    machines = {each["metadata"]["name"]: each for each in objects if is_kind(each, MACHINE)}
    for name in progress.machines.keys() - machines.keys():
        progress.observe(MACHINE, name, None)
    for name, machine in machines.items():
        progress.observe(MACHINE, name, machine)
    for each in objects:
        if is_kind(each, CONTROL_PLANE):
            progress.observe(CONTROL_PLANE, each["metadata"]["name"], each)


async def _watch_forever(
    client: Client, progress: ClusterProgress, kind: Kind, namespace: str, *, fields: str = "", labels: str = ""
) -> None:
    while True:
        await _watch(client, progress, kind, namespace, fields=fields, labels=labels)
        await asyncio.sleep(RETRY_SECONDS)


async def _watch(
    client: Client, progress: ClusterProgress, kind: Kind, namespace: str, *, fields: str = "", labels: str = ""
) -> None:
    """Watch until the connection ends; objects deleted meanwhile are detected by the next list."""
    found: set[str] = set()
    try:
        events = client.watch(kind.resource, namespace=namespace, fields=fields, labels=labels, initial_events=True)
        async with aclosing(events):
            async for event in events:
                if event.type == "BOOKMARK":
                    _forget(progress, kind, found)
                    continue
                name = event.object["metadata"]["name"]
                found.add(name)
                progress.observe(kind, name, None if event.type == "DELETED" else event.object)
    except (Forbidden, Unauthorized):
        raise
    except (StatusError, OSError):
        return


def _forget(progress: ClusterProgress, kind: Kind, found: set[str]) -> None:
    if kind is PROVISIONING_CLUSTER and not found:
        raise ClusterNotFound
    if kind is MACHINE:
        for name in progress.machines.keys() - found:
            progress.observe(kind, name, None)


def _label(obj: Object, name: str) -> str:
    return str((obj["metadata"].get("labels") or {}).get(name, ""))
