"""Start after a restore: make all clusters observe-only before agents, the runner or controllers read old data."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import MACHINE, POD
from herder.api.machines.archive import CONFIG_MAP
from herder.api.machines.jobs import JOB
from herder.api.machines.names import INFRA_NAME_LABEL
from herder.api.management import names
from herder.api.observe_only import MARKED_KINDS, OBSERVE_ONLY, mark_of
from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.node.held_plan import withdrawal
from herder.app.install import ensure_namespace
from herder.engine.client.client import Client
from herder.engine.logs import get_logger
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind, Object
from herder.engine.store import Restored

log = get_logger(__name__)

RECORD = "manager-restore"
"""ConfigMap with the last restore for which all clusters were marked. A restore that it does not name is unfinished."""


async def observe_only_after_restore(client: Client, restored: Restored | None, now: datetime) -> int | None:
    """Prepare the store after a restore, once; return the number of clusters that are observe-only now.

    Nothing else may use the store yet. Every step can be repeated, so an interrupted start continues here.
    """
    if restored is None or await _recorded_revision(client) >= restored.revision:
        return None
    since = datetime.fromtimestamp(restored.backup_at, UTC) if restored.backup_at else None
    cause = f"restored from the backup of {timestamp(since)}" if since else "restored from a backup"
    marked = await make_observe_only(client, cause)
    await _record(client, restored, cause, now)
    log.warning("all clusters are observe-only", clusters=marked, cause=cause, resume="herder resume cluster NAME")
    return marked


async def make_observe_only(client: Client, cause: str) -> int:
    """Mark all clusters, and remove from the store what agents, the runner and guards must not rely on: unfinished
    plans and Jobs, and the versions that Nodes had. Returns the number of clusters."""
    clusters: set[str] = set()
    for kind in MARKED_KINDS:
        async for obj in _each(client, kind):
            if _is_local(obj):
                continue
            await _mark(client, kind, obj, cause)
            clusters.add(str((obj.get("spec") or {}).get("displayName") or obj["metadata"]["name"]))
    async for secret in _each(client, PLAN_SECRET, fields=PLAN_SECRET.fields):
        patch = withdrawal(secret)
        if patch is not None:
            meta = secret["metadata"]
            await client.patch(PLAN_SECRET.resource, meta["name"], patch, namespace=meta["namespace"])
    await _forget_node_versions(client)
    await _remove_unfinished_jobs(client)
    return len(clusters)


def _is_local(cluster: Object) -> bool:
    """The manager's own cluster has no machines of ours."""
    meta = cluster["metadata"]
    return meta["name"] == names.LOCAL and meta.get("namespace", "") in ("", names.LOCAL_WORKSPACE)


async def _mark(client: Client, kind: Kind, obj: Object, cause: str) -> None:
    if mark_of(obj) == cause:
        return
    meta, patch = obj["metadata"], {"metadata": {"annotations": {OBSERVE_ONLY: cause}}}
    with suppress(NotFound):
        await client.patch(kind.resource, meta["name"], patch, namespace=meta.get("namespace", ""))


async def _forget_node_versions(client: Client) -> None:
    """Guards compare versions with those of Nodes, which are read again once the cluster's agent connects."""
    async for machine in _each(client, MACHINE):
        if (machine.get("status") or {}).get("nodeInfo"):
            meta, patch = machine["metadata"], {"status": {"nodeInfo": None}}
            with suppress(NotFound):
                await client.patch(
                    MACHINE.resource, meta["name"], patch, namespace=meta["namespace"], subresource="status"
                )


async def _remove_unfinished_jobs(client: Client) -> None:
    """Remove the Jobs that were creating or deleting machines, which the runner would start again.

    After the resume, their machines' state decides whether they are needed.
    """
    async for job in _each(client, JOB, labels=INFRA_NAME_LABEL):
        conditions = (job.get("status") or {}).get("conditions") or ()
        if not any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in conditions):
            await _remove(client, JOB, job)
    async for pod in _each(client, POD, labels=INFRA_NAME_LABEL):
        if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            await _remove(client, POD, pod)


async def _remove(client: Client, kind: Kind, obj: Object) -> None:
    """Remove an object at once: finalizers of its controller would keep it."""
    meta = obj["metadata"]
    with suppress(NotFound):
        patch = {"metadata": {"finalizers": None}}
        await client.patch(kind.resource, meta["name"], patch, namespace=meta["namespace"])
        await client.delete(kind.resource, meta["name"], namespace=meta["namespace"], grace_seconds=0)


async def _each(client: Client, kind: Kind, *, labels: str = "", fields: str = "") -> AsyncIterator[Object]:
    try:
        found = await client.list_all(kind.resource, labels=labels, fields=fields)
    except NotFound:
        return  # the kind is not installed
    for obj in found.items:
        yield obj


# --- record -----------------------------------------------------------------------------------------------------------


async def _recorded_revision(client: Client) -> int:
    try:
        record = await client.get(CONFIG_MAP.resource, RECORD, namespace=names.SYSTEM_NAMESPACE)
    except NotFound:
        return 0
    revision = str((record.get("data") or {}).get("revision") or "")
    return int(revision) if revision.isdecimal() else 0


async def _record(client: Client, restored: Restored, cause: str, now: datetime) -> None:
    await ensure_namespace(client, names.SYSTEM_NAMESPACE)
    obj = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": RECORD, "namespace": names.SYSTEM_NAMESPACE},
        "data": {"revision": str(restored.revision), "cause": cause, "startedAt": timestamp(now)},
    }
    await client.apply(CONFIG_MAP.resource, obj, field_manager="herder-restore", force=True)
