"""Cluster API as processes on an engine: the managers, a cluster's objects, and what can be seen of them meanwhile."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from pathlib import Path

from herder.api.capi import kinds as capi
from herder.api.inmemory import kinds as inmemory
from herder.engine.client.client import Client, WatchEvent
from herder.engine.meta.errors import InternalError, Invalid, NotFound, TooManyRequests
from herder.engine.meta.kinds import GroupVersionResource, Kind, Object
from tests.support.canaries import in_logs, nothing_told
from tests.support.embedded import HERDER
from tests.support.engines import Engine
from tests.support.kube import free_port
from tests.support.processes import ended

CORE_KINDS = (
    capi.CLUSTER,
    capi.MACHINE_DEPLOYMENT,
    capi.MACHINE_SET,
    capi.MACHINE,
    capi.MACHINE_HEALTH_CHECK,
)
PROVIDED_KINDS = (
    inmemory.IN_MEMORY_CLUSTER,
    inmemory.IN_MEMORY_CONTROL_PLANE,
    inmemory.IN_MEMORY_MACHINE,
    inmemory.IN_MEMORY_BOOTSTRAP,
)
TEMPLATE_KINDS = (inmemory.IN_MEMORY_MACHINE_TEMPLATE, inmemory.IN_MEMORY_BOOTSTRAP_TEMPLATE)
EVENT = Kind("", "v1", "Event", "events")
NAMESPACES = GroupVersionResource("", "v1", "namespaces")

PATIENCE = 150.0
"""Seconds until something that must happen is said not to: far more than it takes, on a busy machine too."""


# --- managers ---------------------------------------------------------------------------------------------------


class HerderRun:
    """`herder run` on an engine, as a process of its own."""

    def __init__(self, engine: Engine, directory: Path, *flags: str, around: tuple[str, ...] = ()) -> None:
        """`around` are words before the command, such as those that enter a namespace."""
        self.engine = engine
        self.kubeconfig = engine.kubeconfig
        self.directory = directory
        self.flags = flags
        self.around = around
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> HerderRun:
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "run.log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *self.around,
                    *(HERDER, "run", "--kubeconfig", self.kubeconfig, "--data-dir", self.directory),
                    *self.flags,
                ],
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        return self

    def log(self) -> str:
        return (self.directory / "run.log").read_text(errors="replace")

    def stop(self) -> int:
        """Its exit status, 0 after an orderly end. It must have told no secret."""
        status = ended(self.process)
        nothing_told(in_logs(self.directory))
        return status

    def __enter__(self) -> HerderRun:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def webhook_flags() -> tuple[str, ...]:
    """The API server beside it asks it on loopback."""
    port = free_port()
    return ("--webhook-listen", f"127.0.0.1:{port}", "--webhook-url", f"https://127.0.0.1:{port}")


async def served(client: Client, *kinds: Kind) -> None:
    async with asyncio.timeout(PATIENCE):
        for kind in kinds:
            while not await _is_served(client, kind):
                await asyncio.sleep(0.1)


async def admitting(client: Client) -> None:
    """Until what is written is filled in: on a real server the webhooks are asked a moment after they are there."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                made = await client.create(capi.MACHINE_DEPLOYMENT.resource, TRIED, namespace="default", dry_run=True)
                if made["spec"].get("replicas") == 1:
                    return
            except (Invalid, InternalError):
                pass
            await asyncio.sleep(0.1)


_REFERENCE = {
    "apiGroup": inmemory.IN_MEMORY_MACHINE_TEMPLATE.group,
    "kind": inmemory.IN_MEMORY_MACHINE_TEMPLATE.kind,
    "name": "t",
}
TRIED: Object = {
    "apiVersion": capi.MACHINE_DEPLOYMENT.api_version,
    "kind": capi.MACHINE_DEPLOYMENT.kind,
    "metadata": {"name": "tried"},
    "spec": {
        "clusterName": "c",
        "template": {
            "spec": {"clusterName": "c", "bootstrap": {"dataSecretName": "s"}, "infrastructureRef": _REFERENCE}
        },
    },
}
"""Admission fills in that it has one replica."""


async def _is_served(client: Client, kind: Kind) -> bool:
    try:
        await client.list(kind.resource, limit=1)
    except NotFound:
        return False
    return True


# --- objects ----------------------------------------------------------------------------------------------------


async def ensure_namespace(client: Client, name: str) -> None:
    await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


async def put_up(client: Client, namespace: str, objects: Iterable[tuple[Kind, Object]]) -> None:
    for kind, obj in objects:
        await client.create(kind.resource, obj, namespace=namespace)


async def until(
    client: Client, kind: Kind, namespace: str, wanted: Callable[[list[Object]], bool], *, seconds: float = PATIENCE
) -> list[Object]:
    """Wait by watch until the objects of a kind are as wanted; and how they are then."""
    objects: dict[str, Object] = {}
    known = False
    try:
        async with asyncio.timeout(seconds), aclosing(events_of(client, kind, namespace)) as events:
            async for event in events:
                if event.type == "BOOKMARK":
                    known = True  # all that was there is told
                elif event.type == "DELETED":
                    objects.pop(event.object["metadata"]["name"], None)
                else:
                    objects[event.object["metadata"]["name"]] = event.object
                if known and wanted(list(objects.values())):
                    return list(objects.values())
    except TimeoutError:
        told = "\n".join(f"{name}: {obj.get('status')}" for name, obj in objects.items())
        raise AssertionError(f"{kind.plural} never became as wanted:\n{told}") from None
    raise AssertionError(f"the watch of {kind.plural} has ended")


async def events_of(client: Client, kind: Kind, namespace: str) -> AsyncGenerator[WatchEvent, None]:
    """A real server asks watchers of a kind that has just changed to come back, and all clients do."""
    while True:
        try:
            async with aclosing(client.watch(kind.resource, namespace=namespace, initial_events=True)) as events:
                async for event in events:
                    yield event
            return
        except TooManyRequests:
            await asyncio.sleep(0.1)


def phase(obj: Object) -> str:
    return str((obj.get("status") or {}).get("phase", ""))


def said(obj: Object, type_: str) -> str:
    """The status of a condition, empty where it is not told."""
    known = (obj.get("status") or {}).get("conditions") or ()
    return next((str(each["status"]) for each in known if each["type"] == type_), "")


def all_running(count: int) -> Callable[[list[Object]], bool]:
    """Which Machines are wanted: so many, and each of them can be used."""

    def wanted(machines: list[Object]) -> bool:
        return len(machines) == count and all(
            phase(machine) == "Running" and said(machine, "Available") == "True" for machine in machines
        )

    return wanted


def none_left(objects: list[Object]) -> bool:
    return not objects
