"""Performs evictions in downstream clusters: one request each, and an answer that says what became of it.

Every outcome is a value, since a refusal is ordinary: a disruption budget may hold a pod back for hours, and whoever
drains decides when to try again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from herder.engine.meta.errors import Conflict, Forbidden, NotFound, StatusError, TooManyRequests
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.engine.meta.printable import printable
from herder.engine.runtime.remote import Remotes

PODS = GroupVersionResource("", "v1", "pods")
EVICTION_SECONDS = 10.0
MOST_CAUSES, LONGEST_CAUSE = 10, 1024
NAMESPACE_TERMINATING = "NamespaceTerminating"
TERMINATING_MESSAGE = (
    "Cannot evict pod from terminating namespace: unable to create eviction"
    " (kube-controller-manager should set deletionTimestamp)"
)


async def evict(remotes: Remotes, arguments: Mapping[str, Any]) -> Object:
    """Arguments: cluster, namespace, name, and where they matter uid and grace_seconds.

    The outcome is `evicted`, `gone` (also where another pod has the name by now), `blocked` by what `causes` tell, or
    `failed`.
    """
    try:
        async with asyncio.timeout(EVICTION_SECONDS):
            await _request(remotes, arguments)
    except NotFound as error:
        return _outcome("gone", error.message)
    except TooManyRequests as error:
        return _outcome("blocked", error.message, _causes(error))
    except StatusError as error:
        return _refused(error, arguments.get("uid", ""))
    except TimeoutError:
        return _outcome("failed", "no answer in time")
    return _outcome("evicted")


async def _request(remotes: Remotes, arguments: Mapping[str, Any]) -> None:
    options: Object = {}
    if arguments.get("grace_seconds") is not None:
        options["gracePeriodSeconds"] = arguments["grace_seconds"]
    if arguments.get("uid"):
        options["preconditions"] = {"uid": arguments["uid"]}
    namespace, name = arguments["namespace"], arguments["name"]
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": options,
    }
    client = remotes.client(arguments["cluster"])
    await client.create(PODS, eviction, namespace=namespace, name=name, subresource="eviction")


def _refused(error: StatusError, uid: str) -> Object:
    if error.code == Conflict.code and uid and "uid" in error.message.lower():
        return _outcome("gone", error.message)  # the name is another pod's now
    if isinstance(error, Forbidden) and any(cause.get("reason") == NAMESPACE_TERMINATING for cause in _details(error)):
        return _outcome("failed", TERMINATING_MESSAGE)
    return _outcome("failed", error.message)


def _outcome(outcome: str, message: str = "", causes: list[str] | None = None) -> Object:
    return {"outcome": outcome, "message": message, "causes": causes or []}


def _causes(error: StatusError) -> list[str]:
    """What the server says stands in the way, such as a disruption budget by its name."""
    messages = [printable(str(cause["message"]), LONGEST_CAUSE) for cause in _details(error) if cause.get("message")]
    return messages[:MOST_CAUSES]


def _details(error: StatusError) -> list[Object]:
    causes = (error.details or {}).get("causes")
    return [cause for cause in causes if isinstance(cause, dict)] if isinstance(causes, list) else []
