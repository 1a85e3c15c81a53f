"""Logs of the Jobs that create and remove a machine: from their pods, or from the archive."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from herder.api.capi.kinds import SECRET
from herder.api.machines.archive import KIND_OF, MAX_LOG_BYTES, NAME_OF, NAMESPACE_OF, log_tail
from herder.api.machines.credentials import redact
from herder.api.machines.names import (
    ARCHIVE_NAMESPACE,
    CREATE_LOG,
    INFRA_KIND_LABEL,
    INFRA_NAME_LABEL,
    INFRA_REMOVE_LABEL,
    REMOVE_LOG,
    archived_log,
    archived_log_before,
    environment_secret,
)
from herder.engine.client.client import Client
from herder.engine.meta.errors import Forbidden, NotFound
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.engine.wire import Query

PODS = GroupVersionResource("", "v1", "pods")
CONFIG_MAPS = GroupVersionResource("", "v1", "configmaps")

MAX_PODS, MAX_LINES = 10, 5_000
_END = Query([("tailLines", str(MAX_LINES)), ("limitBytes", str(MAX_LOG_BYTES))])
NOT_REDACTABLE = "(log not shown: the Secret that lists the values to redact does not exist anymore)\n"


async def machine_log(client: Client, namespace: str, kind: str, name: str) -> str:
    """The log of the machine with this infrastructure object, redacted, up to the size of an archived log.

    Names are unique for each kind only: the machine of another kind may be another user's.
    Its readers may not read the credential that the Job uses. Editors of the namespace can create pods with its label,
    as many as they want, whose logs have any size.
    """
    found = await _pods(client, namespace, name)
    pods = [pod for pod in found if _labels(pod).get(INFRA_KIND_LABEL) == kind][-MAX_PODS:]
    sensitive = await _sensitive_values(client, namespace, name) if pods else ()
    if sensitive is None:
        return NOT_REDACTABLE
    text = "".join([part async for part in _logs(client, namespace, name, pods, _END, kind)])
    end = log_tail(text)
    whole_lines = end if end == text else end.partition("\n")[2]  # part of a value would not be recognized
    return await asyncio.to_thread(redact, whole_lines, sensitive)


async def stream_machine_log(client: Client, namespace: str, name: str, *, follow: bool = False) -> AsyncIterator[str]:
    """Log of the creation, then that of the removal."""
    pods = await _pods(client, namespace, name)
    async for text in _logs(client, namespace, name, pods, Query([("follow", "true")] if follow else [])):
        yield text


async def _sensitive_values(client: Client, namespace: str, name: str) -> tuple[str, ...] | None:
    """All values in the environment Secret of the Job; None if it does not exist."""
    try:
        secret = await client.get(SECRET.resource, environment_secret(name), namespace=namespace)
    except NotFound:
        return None
    return tuple(base64.b64decode(value).decode(errors="replace") for value in (secret.get("data") or {}).values())


async def _logs(
    client: Client, namespace: str, name: str, pods: Sequence[Object], query: Query, kind: str = ""
) -> AsyncIterator[str]:
    """`kind`: of the machine; empty for any."""
    archived = await _archived(client, namespace, name, kind)
    for key, removing in ((CREATE_LOG, False), (REMOVE_LOG, True)):
        own = [pod for pod in pods if (INFRA_REMOVE_LABEL in _labels(pod)) is removing]
        for pod in own:
            async for text in _pod_log(client, pod, query):
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


async def _archived(client: Client, namespace: str, machine: str, kind: str) -> dict[str, str]:
    for name in (archived_log(namespace, machine), archived_log_before(namespace, machine)):
        with suppress(NotFound):
            kept = await client.get(CONFIG_MAPS, name, namespace=ARCHIVE_NAMESPACE)
            whose = kept["metadata"].get("annotations") or {}
            is_of_kind = not kind or whose.get(KIND_OF) == kind
            if is_of_kind and (whose.get(NAMESPACE_OF), whose.get(NAME_OF)) == (namespace, machine):
                return kept.get("data") or {}
    return {}


async def _pod_log(client: Client, pod: Object, query: Query) -> AsyncIterator[str]:
    meta = pod["metadata"]
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
