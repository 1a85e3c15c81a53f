"""What becomes of a cluster, told while it happens: what it waits for, and each of its machines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Any

import click

from herder.api.capi.conditions import find, is_true
from herder.api.capi.kinds import MACHINE
from herder.api.management.clusters import STALLED
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke import cluster_spec, names
from herder.api.rke.kinds import CONTROL_PLANE
from herder.engine.client.client import Client
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import Kind, Object
from herder.engine.meta.printable import printable

Say = Callable[[str], None]
STALLED_SECONDS = 10.0  # what a cluster refers to may come right after it
COULD_NOT_BE_MADE = "CreateError: "  # in what a Machine tells of its infrastructure
STEPS = ("Created", "RKECluster", "Provisioned", "Updated")  # conditions, in the order in which they become true


class Scene:
    """The cluster as it is known so far; `changed` whenever more is."""

    def __init__(self) -> None:
        self.cluster: Object | None = None
        self.control_plane: Object | None = None
        self.machines: dict[str, Object] = {}
        self.is_gone = False
        self.changed = asyncio.Event()

    def seen(self, kind: Kind, name: str, obj: Object | None) -> None:
        if kind is PROVISIONING_CLUSTER:
            self.is_gone = obj is None and self.cluster is not None
            self.cluster = obj if obj is not None else self.cluster
        elif kind is CONTROL_PLANE:
            self.control_plane = obj
        elif obj is None:
            self.machines.pop(name, None)
        else:
            self.machines[name] = obj
        self.changed.set()

    @property
    def as_wanted(self) -> bool:
        """All that was asked for has been seen by everybody who acts on it, and is done."""
        if self.cluster is None or self.control_plane is None:
            return False
        return (
            cluster_spec.is_handed_over(self.cluster, self.control_plane)
            and cluster_spec.is_applied(self.control_plane)
            and bool((self.cluster.get("status") or {}).get("ready"))
            and all(is_true(self.control_plane, each) for each in ("Ready", "Reconciled"))
            and all(is_true(self.cluster, each) for each in ("Ready", "Updated"))
            and self._has_its_machines()
        )

    def _has_its_machines(self) -> bool:
        assert self.cluster is not None
        pools = (self.cluster["spec"].get("rkeConfig") or {}).get("machinePools") or ()
        wanted = {pool["name"]: pool.get("quantity", 1) for pool in pools}
        for pool, quantity in wanted.items():
            mine = [each for each in self.machines.values() if _label(each, names.POOL_NAME) == pool]
            if len(mine) != quantity or any((each.get("status") or {}).get("phase") != "Running" for each in mine):
                return False
        return True

    @property
    def why_not(self) -> str:
        """Why what was asked for last cannot be carried out; empty where it can, as far as is known."""
        if self.cluster is None or not is_true(self.cluster, STALLED):
            return ""
        seen = (self.cluster.get("status") or {}).get("observedGeneration")
        known = find(self.cluster, STALLED) or {}
        return str(known.get("message", "")) if seen == self.cluster["metadata"].get("generation") else ""

    def what_it_waits_for(self) -> str:
        """The first thing that is not done, in the words of who does it."""
        for step in STEPS:
            known = find(self.cluster, step)
            if known is not None and known["status"] != "True" and known.get("message"):
                return str(known["message"])
        return ""

    def why_machines_failed(self) -> dict[str, str]:
        """Those that could not be made, and those whose plan has failed."""
        status = {name: _failure(machine) for name, machine in sorted(self.machines.items())}
        return {name: why for name, why in status.items() if why}


async def until_as_wanted(client: Client, namespace: str, name: str, say: Say) -> None:
    try:
        await _until(client, namespace, name, say, lambda scene: scene.as_wanted, patience=STALLED_SECONDS)
    except _InVain as why:
        edit = (
            f"kubectl -n {namespace} edit {PROVISIONING_CLUSTER.resource.resource}.{PROVISIONING_CLUSTER.group} {name}"
        )
        raise click.ClickException(f"cluster {name} is stalled: {why}; fix it with: {edit}") from None
    say(f"cluster {name} is ready")


async def until_gone(client: Client, namespace: str, name: str, say: Say) -> None:
    with suppress(_Gone):
        await _until(client, namespace, name, say, lambda scene: scene.is_gone)
    say(f"cluster {name} is deleted")


async def _until(
    client: Client,
    namespace: str,
    name: str,
    say: Say,
    done: Callable[[Scene], bool],
    patience: float | None = None,
) -> None:
    scene = Scene()
    own, of_cluster = f"metadata.name={name}", f"{names.CLUSTER_NAME}={name}"
    followed = [
        asyncio.ensure_future(_follow(client, scene, PROVISIONING_CLUSTER, namespace, fields=own)),
        asyncio.ensure_future(_follow(client, scene, CONTROL_PLANE, namespace, fields=own)),
        asyncio.ensure_future(_follow(client, scene, MACHINE, namespace, labels=of_cluster)),
    ]
    try:
        await _print_progress(scene, followed, lambda text: say(printable(text)), done, patience)
    finally:
        for each in followed:
            each.cancel()
        await asyncio.gather(*followed, return_exceptions=True)


async def _print_progress(
    scene: Scene,
    followed: list[asyncio.Task[None]],
    say: Say,
    done: Callable[[Scene], bool],
    patience: float | None,
) -> None:
    """`patience`: for how long nothing more may happen while what was asked for cannot be carried out."""
    waited, phases, failures = "", dict[str, str](), dict[str, str]()
    while not done(scene):
        scene.changed.clear()
        waiting: asyncio.Task[Any] = asyncio.ensure_future(scene.changed.wait())
        try:
            quiet = patience if scene.why_not else None
            news, _ = await asyncio.wait([waiting, *followed], timeout=quiet, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if not news:
            raise _InVain(scene.why_not)
        for each in followed:
            if each.done():
                each.result()
        for machine, phase in _phases(scene).items():
            if phases.get(machine) != phase:
                say(f"  machine {machine}: {phase}")
        for machine in phases.keys() - scene.machines.keys():
            say(f"  machine {machine}: Deleted")
        phases = _phases(scene)
        known, failures = failures, scene.why_machines_failed()
        for machine, why in failures.items():
            if known.get(machine) != why:
                say(f"  machine {machine}: {why}")
        now = scene.what_it_waits_for()
        if now and now != waited:
            say(f"  {now}")
        waited = now


def _failure(machine: Object) -> str:
    plan = find(machine, names.PLAN_APPLIED) or {}
    if plan.get("status") == "False":
        return str(plan.get("message", ""))
    made = find(machine, "InfrastructureReady") or {}
    _, failed, why = str(made.get("message", "")).partition(COULD_NOT_BE_MADE)
    return f"creation failed: {why}" if failed and made.get("status") == "False" else ""


def _phases(scene: Scene) -> dict[str, str]:
    return {
        name: (machine.get("status") or {}).get("phase", "Pending") for name, machine in sorted(scene.machines.items())
    }


class _InVain(Exception):
    """Why what is waited for will not come."""


class _Gone(Exception):
    """The cluster was not there any more when it was first looked for."""


async def _follow(
    client: Client, scene: Scene, kind: Kind, namespace: str, *, fields: str = "", labels: str = ""
) -> None:
    """Through any loss of the connection; what is gone meanwhile is told by what is listed anew."""
    while True:
        found: set[str] = set()
        try:
            events = client.watch(kind.resource, namespace=namespace, fields=fields, labels=labels, initial_events=True)
            async with aclosing(events):
                async for event in events:
                    if event.type == "BOOKMARK":
                        _forget(scene, kind, found)
                        continue
                    name = event.object["metadata"]["name"]
                    found.add(name)
                    scene.seen(kind, name, None if event.type == "DELETED" else event.object)
        except (StatusError, OSError):
            await asyncio.sleep(0.5)


def _forget(scene: Scene, kind: Kind, found: set[str]) -> None:
    if kind is PROVISIONING_CLUSTER and not found:
        raise _Gone
    if kind is MACHINE:
        for name in scene.machines.keys() - found:
            scene.seen(kind, name, None)


def _label(obj: Object, name: str) -> str:
    return str((obj["metadata"].get("labels") or {}).get(name, ""))
