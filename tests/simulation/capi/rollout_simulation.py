"""One cluster of the in-memory provider in a simulated deployment, and its user."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from random import Random
from typing import Any

from herder.api.capi.crds import CRDS
from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, MACHINE_HEALTH_CHECK, NODE, SECRET
from herder.api.capi.names import CLUSTER_NAME, cluster_key
from herder.api.guards import GUARDS
from herder.api.inmemory.crds import CRDS as IN_MEMORY_CRDS
from herder.api.inmemory.kinds import (
    IN_MEMORY_CLUSTER,
    IN_MEMORY_CONTROL_PLANE,
    IN_MEMORY_MACHINE,
    IN_MEMORY_MACHINE_TEMPLATE,
)
from herder.api.inmemory.manifest import in_memory_cluster, new_object
from herder.api.inmemory.names import API_FAULT, NODE_DELAY, NODE_READY, START_DELAY
from herder.app.admission.kinds import install_admission
from herder.app.manager import core_controllers, in_memory_controllers
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.performers import REMOTE_PERFORMERS
from herder.sim.faults import Faults
from herder.sim.world import SAME_MOMENT, World
from tests.simulation.capi.invariants import WATCHED, RolloutInvariants

NAME, NAMESPACE = "herd", "default"
DEPLOYMENT = f"{NAME}-workers"
TIMEOUT = 3 * 3600.0
SLOW_MACHINES = {START_DELAY: "4±90%", NODE_DELAY: "2±90%"}


class RolloutSimulation:
    """The actions of a user on a cluster, with invariants that are checked at every event."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self.random = Random(f"user {seed}")
        self.invariants = RolloutInvariants(lambda: asyncio.get_running_loop().time())
        self._helpers: list[asyncio.Future[None]] = []
        self.world = World(
            seed,
            [*core_controllers(), *in_memory_controllers()],
            crds=[*CRDS, *IN_MEMORY_CRDS],
            guards=GUARDS,
            remote_performers=REMOTE_PERFORMERS,
            faults=faults,
            watched=WATCHED,
            invariant=self.invariants,
            prepare=install_admission,
        )

    # --- the user -----------------------------------------------------------------------------------------------------

    async def create_cluster(self, workers: int, **deployment: Any) -> None:
        manifests = in_memory_cluster(NAME, workers=workers, deployment=deployment, machine_annotations=SLOW_MACHINES)
        for kind, obj in manifests:
            await self.world.client.create(kind.resource, obj, namespace=NAMESPACE)
        await self._wait_until_recorded()
        await self.until_settled()

    async def change_template(self, name: str, annotations: Mapping[str, str] = SLOW_MACHINES) -> None:
        spec = {"template": {"metadata": {"annotations": dict(annotations)}, "spec": {}}}
        kind, template = new_object(IN_MEMORY_MACHINE_TEMPLATE, name, spec)
        await self.world.client.create(kind.resource, template, namespace=NAMESPACE)
        await self.edit(template={"spec": {"infrastructureRef": {"name": name}}})

    async def edit(self, **spec: Any) -> None:
        await self.patch(MACHINE_DEPLOYMENT, DEPLOYMENT, {"spec": spec})

    async def pause(self, paused: bool) -> None:
        await self.patch(CLUSTER, NAME, {"spec": {"paused": paused}})

    async def delete_machine(self, name: str) -> None:
        self.invariants.deleted_by_user.add(name)
        with suppress(NotFound):
            await self.world.client.delete(MACHINE.resource, name, namespace=NAMESPACE)
        await self._wait_until_recorded()

    async def check_health(self, timeout: int, most: int | str) -> None:
        conditions = [{"type": "Ready", "status": status, "timeoutSeconds": timeout} for status in ("False", "Unknown")]
        spec = {
            "clusterName": NAME,
            "selector": {"matchLabels": {"cluster.x-k8s.io/deployment-name": DEPLOYMENT}},
            "checks": {"nodeStartupTimeoutSeconds": 300, "unhealthyNodeConditions": conditions},
            "remediation": {"triggerIf": {"unhealthyLessThanOrEqualTo": most}},
        }
        kind, check = new_object(MACHINE_HEALTH_CHECK, NAME, spec)
        await self.world.client.create(kind.resource, check, namespace=NAMESPACE)

    async def annotate(self, kind: Kind, name: str, annotation: str, value: str | None) -> None:
        with suppress(NotFound):
            await self.patch(kind, name, {"metadata": {"annotations": {annotation: value}}})

    async def break_node(self, machine: str, status: str) -> None:
        self.invariants.broken.setdefault(machine, asyncio.get_running_loop().time())
        await self.annotate(IN_MEMORY_MACHINE, machine, NODE_READY, status)

    async def heal_node(self, machine: str) -> None:
        await self.annotate(IN_MEMORY_MACHINE, machine, NODE_READY, None)
        self.invariants.broken.pop(machine, None)

    async def disconnect(self, fault: str, seconds: float) -> None:
        """The workload cluster does not respond for a while."""
        await self.annotate(IN_MEMORY_CLUSTER, NAME, API_FAULT, fault)
        self.invariants.unreachable_since = asyncio.get_running_loop().time()
        await asyncio.sleep(seconds)
        self.invariants.unreachable_since = math.inf
        await self.annotate(IN_MEMORY_CLUSTER, NAME, API_FAULT, None)

    async def patch(self, kind: Kind, name: str, patch: Object) -> None:
        await self.world.client.patch(kind.resource, name, patch, namespace=NAMESPACE)
        await self._wait_until_recorded()

    async def _wait_until_recorded(self) -> None:
        """Wait until the invariants have seen the last action."""
        await asyncio.sleep(2 * SAME_MOMENT)

    # --- time ---------------------------------------------------------------------------------------------------------

    async def pass_time(self, at_least: float, at_most: float) -> None:
        await asyncio.sleep(self.random.uniform(at_least, at_most))
        self.world.check()

    async def until(self, reached: Callable[[], bool]) -> None:
        async def condition() -> bool:
            return reached()

        await self.world.until(condition, within=TIMEOUT)

    async def until_settled(self) -> None:
        await self.until(self.invariants.is_settled)

    def run_in_background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._helpers.append(asyncio.ensure_future(coroutine))

    # --- final checks -------------------------------------------------------------------------------------------------

    async def check_settled(self) -> None:
        """Nothing is left to do: objects are as desired, in the workload cluster, too."""
        await self.until(
            lambda: len(self.invariants.objects[IN_MEMORY_MACHINE]) == len(self.invariants.objects[MACHINE])
        )
        self.invariants.check_owned_objects()
        nodes = await self.world.workloads.client(cluster_key(NAMESPACE, NAME)).list(NODE.resource)
        found = {node["metadata"]["name"] for node in nodes.items}
        wanted = {machine["status"]["nodeRef"]["name"] for machine in self.invariants.objects[MACHINE].values()}
        assert found == wanted, f"Nodes {found} for Machines {wanted}"

    async def delete_cluster(self) -> None:
        """Deleting a Cluster deletes all objects that were created for it."""
        for helper in self._helpers:
            helper.cancel()
        await asyncio.gather(*self._helpers, return_exceptions=True)
        await self.world.client.delete(CLUSTER.resource, NAME, namespace=NAMESPACE)
        await self.world.until(self._is_deleted, within=TIMEOUT)
        assert self.world.workloads.served == []

    async def _is_deleted(self) -> bool:
        if self.invariants.remaining_objects():
            return False
        for kind in (IN_MEMORY_CLUSTER, IN_MEMORY_CONTROL_PLANE, SECRET):
            labels = f"{CLUSTER_NAME}={NAME}"
            if (await self.world.client.list(kind.resource, namespace=NAMESPACE, labels=labels)).items:
                return False
        return True
