"""Evict pods in downstream clusters: one Eviction request each, with every outcome as a value.

A rejected eviction is ordinary: a PodDisruptionBudget may block a pod for hours, and the drain decides when to retry.
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
MAX_CAUSES, MAX_CAUSE_LENGTH = 10, 1024
NAMESPACE_TERMINATING = "NamespaceTerminating"
TERMINATING_MESSAGE = (
    "Cannot evict pod from terminating namespace: unable to create eviction"
    " (kube-controller-manager should set deletionTimestamp)"
)


async def evict(remotes: Remotes, arguments: Mapping[str, Any]) -> Object:
    """Evict a pod. Arguments: cluster, namespace, name, and optionally uid and grace_seconds.

    The outcome is `evicted`, `gone` (also if another pod has the name), `blocked` with `causes`, or `failed`.
    """
    try:
        async with asyncio.timeout(EVICTION_SECONDS):
            await _request(remotes, arguments)
    except NotFound as error:
        return _outcome("gone", error.message)
    except TooManyRequests as error:
        return _outcome("blocked", error.message, _causes(error))
    except StatusError as error:
        return _failure(error, arguments.get("uid", ""))
    except TimeoutError:
        return _outcome("failed", "response timed out")
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


def _failure(error: StatusError, uid: str) -> Object:
    if error.code == Conflict.code and uid and "uid" in error.message.lower():
        return _outcome("gone", error.message)  # another pod has the name
    if isinstance(error, Forbidden) and any(cause.get("reason") == NAMESPACE_TERMINATING for cause in _details(error)):
        return _outcome("failed", TERMINATING_MESSAGE)
    return _outcome("failed", error.message)


def _outcome(outcome: str, message: str = "", causes: list[str] | None = None) -> Object:
    return {"outcome": outcome, "message": message, "causes": causes or []}


def _causes(error: StatusError) -> list[str]:
    """Return the server's causes, such as the name of a PodDisruptionBudget."""
    messages = [printable(str(cause["message"]), MAX_CAUSE_LENGTH) for cause in _details(error) if cause.get("message")]
    return messages[:MAX_CAUSES]


def _details(error: StatusError) -> list[Object]:
    causes = (error.details or {}).get("causes")
    return [cause for cause in causes if isinstance(cause, dict)] if isinstance(causes, list) else []
