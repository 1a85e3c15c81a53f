"""Logs of the Jobs that create and remove a machine: from their pods, or from the archive."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

from herder.api.machines.archive import NAME_OF, NAMESPACE_OF, log_tail
from herder.api.machines.names import (
    ARCHIVE_NAMESPACE,
    CREATE_LOG,
    INFRA_NAME_LABEL,
    INFRA_REMOVE_LABEL,
    REMOVE_LOG,
    archived_log,
    archived_log_before,
)
from herder.engine.client.client import Client
from herder.engine.meta.errors import Forbidden, NotFound
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.engine.wire import Query

PODS = GroupVersionResource("", "v1", "pods")
CONFIG_MAPS = GroupVersionResource("", "v1", "configmaps")


async def machine_log(client: Client, namespace: str, name: str) -> str:
    """The end of the log of the machine with this infrastructure object, up to the size of an archived log."""
    kept = ""
    async for text in stream_machine_log(client, namespace, name):
        kept = log_tail(kept + text)
    return kept


async def stream_machine_log(client: Client, namespace: str, name: str, *, follow: bool = False) -> AsyncIterator[str]:
    """Log of the creation, then that of the removal."""
    pods, archived = await _pods(client, namespace, name), await _archived(client, namespace, name)
    for key, removing in ((CREATE_LOG, False), (REMOVE_LOG, True)):
        own = [pod for pod in pods if (INFRA_REMOVE_LABEL in _labels(pod)) is removing]
        for pod in own:
            async for text in _pod_log(client, pod, follow):
                yield text
        if not own and key in archived:
            yield archived[key] if archived[key].endswith("\n") else archived[key] + "\n"


async def _pods(client: Client, namespace: str, name: str) -> list[Object]:
    """Pods of existing Jobs, oldest first."""
    try:
        page = await client.list_all(PODS, namespace=namespace, labels=f"{INFRA_NAME_LABEL}={name}")
    except Forbidden:
        return []
    return sorted(page.items, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))


async def _archived(client: Client, namespace: str, machine: str) -> dict[str, str]:
    for name in (archived_log(namespace, machine), archived_log_before(namespace, machine)):
        with suppress(NotFound):
            kept = await client.get(CONFIG_MAPS, name, namespace=ARCHIVE_NAMESPACE)
            whose = kept["metadata"].get("annotations") or {}
            if (whose.get(NAMESPACE_OF), whose.get(NAME_OF)) == (namespace, machine):
                return kept.get("data") or {}
    return {}


async def _pod_log(client: Client, pod: Object, follow: bool) -> AsyncIterator[str]:
    meta = pod["metadata"]
    query = Query([("follow", "true")] if follow else [])
    response = await client.raw("GET", PODS.path(meta["namespace"], meta["name"], "log"), query)
    if response.status >= 400:
        return  # not started, just deleted, or forbidden
    if response.stream is None:
        yield response.content().decode(errors="replace")
        return
    async for chunk in response.stream:
        yield chunk.decode(errors="replace")


def _labels(pod: Object) -> dict[str, str]:
    return pod["metadata"].get("labels") or {}
