"""Cluster API managers as processes on an engine, the objects of a cluster, and waits for their status."""

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
from tests.support.canaries import assert_no_secrets, in_logs
from tests.support.embedded import HERDER
from tests.support.engines import Engine
from tests.support.kube import free_port
from tests.support.manager import account as manager_account
from tests.support.processes import terminate

CORE_KINDS = (
    capi.CLUSTER,
    capi.MACHINE_DEPLOYMENT,
    capi.MACHINE_SET,
    capi.MACHINE,
    capi.MACHINE_HEALTH_CHECK,
)
PROVIDER_KINDS = (
    inmemory.IN_MEMORY_CLUSTER,
    inmemory.IN_MEMORY_CONTROL_PLANE,
    inmemory.IN_MEMORY_MACHINE,
    inmemory.IN_MEMORY_BOOTSTRAP,
)
TEMPLATE_KINDS = (inmemory.IN_MEMORY_MACHINE_TEMPLATE, inmemory.IN_MEMORY_BOOTSTRAP_TEMPLATE)
EVENT = Kind("", "v1", "Event", "events")
NAMESPACES = GroupVersionResource("", "v1", "namespaces")

TIMEOUT = 150.0
"""Seconds after which a wait fails: far more than it takes, even on a busy machine."""


# --- managers ---------------------------------------------------------------------------------------------------


class HerderRun:
    """`herder run` on an engine, in its own process."""

    def __init__(
        self,
        engine: Engine,
        directory: Path,
        *flags: str,
        command_prefix: tuple[str, ...] = (),
        restricted: bool = False,
    ) -> None:
        """`command_prefix` is a command prefix, such as one that enters a network namespace.

        `restricted`: with only the rights that the manager needs, on an audited kube-apiserver.
        """
        self.engine = engine
        self.kubeconfig = engine.kubeconfig
        self.directory = directory
        self.flags = flags
        self.command_prefix = command_prefix
        self.restricted = restricted
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> HerderRun:
        self.directory.mkdir(parents=True, exist_ok=True)
        account = self.kubeconfig
        if self.restricted:
            parts = manager_account.parts_of(self.flags)
            account = manager_account.account_on(self.kubeconfig, parts, self.command_prefix)
        with (self.directory / "run.log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *self.command_prefix,
                    *(HERDER, "run", "--kubeconfig", account, "--data-dir", self.directory),
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
        """Stop the process and return its exit status, 0 after a clean shutdown.

        It must not have leaked a secret, nor lacked a right.
        """
        status = terminate(self.process)
        assert_no_secrets(in_logs(self.directory))
        if self.restricted:
            manager_account.assert_nothing_denied(self.kubeconfig)
        return status

    def __enter__(self) -> HerderRun:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def webhook_flags() -> tuple[str, ...]:
    """Webhooks on loopback, where the API server runs, too."""
    port = free_port()
    return ("--webhook-listen", f"127.0.0.1:{port}", "--webhook-url", f"https://127.0.0.1:{port}")


async def wait_until_served(client: Client, *kinds: Kind) -> None:
    async with asyncio.timeout(TIMEOUT):
        for kind in kinds:
            while not await _is_served(client, kind):
                await asyncio.sleep(0.1)


async def wait_for_admission(client: Client) -> None:
    """Wait until new objects are defaulted: kube-apiserver calls webhooks shortly after they are registered."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            try:
                created = await client.create(
                    capi.MACHINE_DEPLOYMENT.resource, ADMISSION_PROBE, namespace="default", dry_run=True
                )
                if created["spec"].get("replicas") == 1:
                    return
            except (Invalid, InternalError):
                pass
            await asyncio.sleep(0.1)


_REFERENCE = {
    "apiGroup": inmemory.IN_MEMORY_MACHINE_TEMPLATE.group,
    "kind": inmemory.IN_MEMORY_MACHINE_TEMPLATE.kind,
    "name": "t",
}
ADMISSION_PROBE: Object = {
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
"""Admission sets its replicas to 1 by default."""


async def _is_served(client: Client, kind: Kind) -> bool:
    try:
        await client.list(kind.resource, limit=1)
    except NotFound:
        return False
    return True


# --- objects ----------------------------------------------------------------------------------------------------


async def ensure_namespace(client: Client, name: str) -> None:
    await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


async def create_objects(client: Client, namespace: str, objects: Iterable[tuple[Kind, Object]]) -> None:
    for kind, obj in objects:
        await client.create(kind.resource, obj, namespace=namespace)


async def wait_until(
    client: Client, kind: Kind, namespace: str, wanted: Callable[[list[Object]], bool], *, seconds: float = TIMEOUT
) -> list[Object]:
    """Watch the objects of a kind until they satisfy `wanted`, and return them."""
    objects: dict[str, Object] = {}
    known = False
    try:
        async with asyncio.timeout(seconds), aclosing(watch_events(client, kind, namespace)) as events:
            async for event in events:
                if event.type == "BOOKMARK":
                    known = True  # all existing objects were sent
                elif event.type == "DELETED":
                    objects.pop(event.object["metadata"]["name"], None)
                else:
                    objects[event.object["metadata"]["name"]] = event.object
                if known and wanted(list(objects.values())):
                    return list(objects.values())
    except TimeoutError:
        statuses = "\n".join(f"{name}: {obj.get('status')}" for name, obj in objects.items())
        raise AssertionError(f"{kind.plural} did not reach the expected state in time:\n{statuses}") from None
    raise AssertionError(f"the watch of {kind.plural} has ended")


async def watch_events(client: Client, kind: Kind, namespace: str) -> AsyncGenerator[WatchEvent, None]:
    """Watch events. kube-apiserver returns 429 for watches of a kind that has just changed, and clients retry."""
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


def condition_status(obj: Object, type_: str) -> str:
    """The status of a condition; empty if the condition is missing."""
    known = (obj.get("status") or {}).get("conditions") or ()
    return next((str(each["status"]) for each in known if each["type"] == type_), "")


def all_running(count: int) -> Callable[[list[Object]], bool]:
    """A predicate: there are exactly `count` Machines, and all of them are running and available."""

    def wanted(machines: list[Object]) -> bool:
        return len(machines) == count and all(
            phase(machine) == "Running" and condition_status(machine, "Available") == "True" for machine in machines
        )

    return wanted


def none_left(objects: list[Object]) -> bool:
    return not objects
