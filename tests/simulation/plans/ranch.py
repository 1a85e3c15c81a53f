"""One provisioned cluster in a simulated deployment: its user, what befalls its machines, and when all is as asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from herder.api.capi.conditions import is_true
from herder.api.capi.kinds import CLUSTER, MACHINE, NODE
from herder.api.capi.names import PAUSED, is_deleting
from herder.api.guards import GUARDS
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke.kinds import CONTROL_PLANE, PLAN_SECRET
from herder.api.rke.node.plan_secret import PlanSecret
from herder.app.admission.kinds import install_admission, install_cluster_admission
from herder.app.manager import core_controllers, provisioning_controllers
from herder.controllers.provisioning import cluster_registration_token
from herder.controllers.provisioning.cluster import controller as provisioning_cluster
from herder.controllers.provisioning.management_cluster import controller as management_cluster
from herder.engine.apiserver.build import ApiServer
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.executor import Guard
from herder.sim.faults import Faults
from herder.sim.nodes import NO_TROUBLES, SimulatedNode, Troubles
from herder.sim.provisioned import NAME, Provisioned, pool
from herder.sim.world import SAME_MOMENT
from tests.simulation.plans.judge import WATCHED, Judge

PATIENCE = 3600.0
MARK = "kubelet-arg"


def controllers() -> list[Controller]:
    managed = (management_cluster, provisioning_cluster, cluster_registration_token)
    return [*core_controllers(), *(module.CONTROLLER for module in managed), *provisioning_controllers()]


def _admit(server: ApiServer) -> None:
    install_admission(server)
    install_cluster_admission(server)


@dataclass
class Wish:
    """What the user wants now."""

    version: str
    pools: dict[str, tuple[int, tuple[str, ...]]]  # by name: how many, and in which roles
    config: dict[str, Any] = field(default_factory=dict)
    strategy: dict[str, Any] = field(default_factory=dict)
    generation: int = 0

    @property
    def machines(self) -> int:
        return sum(quantity for quantity, _ in self.pools.values())

    def pool_objects(self) -> list[Object]:
        return [pool(name, quantity, *roles) for name, (quantity, roles) in self.pools.items()]


class Ranch:
    def __init__(
        self,
        seed: int,
        faults: Faults,
        troubles: Troubles = NO_TROUBLES,
        guards: Sequence[Guard] = GUARDS,
        patience: float = PATIENCE,
        stubborn: bool = False,
        strict: bool = True,
        crossroads: Callable[[], str] | None = None,
    ) -> None:
        """`stubborn`: a user who goes on though nothing comes of what was asked for. `crossroads` tells where a story
        comes to when it may go on in several ways."""
        self.random = Random(f"user {seed}")
        self.judge = Judge(lambda: asyncio.get_running_loop().time())
        self.wish = Wish("", {})
        self.deeds: list[str] = []
        self.disappointments: list[str] = []
        self._patience = patience
        self._stubborn = stubborn
        self._crossroads = crossroads
        self.sim = Provisioned(
            seed,
            controllers(),
            faults=faults,
            troubles=troubles,
            guards=guards,
            witness=self.judge,
            watched=WATCHED,
            invariant=self.judge,
            prepare=_admit,
            strict=strict,
        )

    async def __aenter__(self) -> Ranch:
        await self.sim.__aenter__()
        self.judge.cluster = self.sim.downstream
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self.sim.__aexit__(*failure)

    def check(self) -> None:
        self.judge.check()
        self.sim.check()

    def did(self, what: str) -> None:
        self.deeds.append(f"{asyncio.get_running_loop().time():.1f} {what}")

    # --- the user ---------------------------------------------------------------------------------------------------

    async def ask_for(self, wish: Wish) -> None:
        self.wish = wish
        self.did(f"asks for {wish}")
        config = {"machineGlobalConfig": wish.config, "upgradeStrategy": wish.strategy}
        await self.sim.ask_for(wish.version, *wish.pool_objects(), **config)

    async def upgrade(self, version: str) -> None:
        self.wish.version = version
        self.did(f"upgrades to {version}")
        await self.sim.edit({"kubernetesVersion": version})

    async def configure(self, value: str) -> None:
        self.wish.config = {MARK: [value]}
        self.did(f"configures {value}")
        await self.sim.edit({"rkeConfig": {"machineGlobalConfig": self.wish.config}})

    async def scale(self, name: str, quantity: int) -> None:
        self.wish.pools[name] = (quantity, self.wish.pools[name][1])
        self.did(f"scales {name} to {quantity}")
        await self.sim.edit({"rkeConfig": {"machinePools": self.wish.pool_objects()}})

    async def change_strategy(self, strategy: dict[str, Any]) -> None:
        self.wish.strategy = strategy
        self.did(f"wants {strategy}")
        await self.sim.edit({"rkeConfig": {"upgradeStrategy": strategy}})

    async def restart_all(self) -> None:
        self.wish.generation += 1
        self.did("restarts all")
        await self.sim.edit({"rkeConfig": {"provisionGeneration": self.wish.generation}})

    async def pause(self, paused: bool) -> None:
        self.did("pauses the cluster" if paused else "lets it go on")
        with suppress(NotFound):
            await self.sim.patch(CLUSTER, NAME, {"spec": {"paused": paused}})
        await self._noted()

    async def pause_machine(self, name: str, paused: bool) -> None:
        self.did(f"{'pauses' if paused else 'lets go on'} {name}")
        mark = {"metadata": {"annotations": {PAUSED: "true" if paused else None}}}
        with suppress(NotFound):
            await self.sim.patch(MACHINE, name, mark)
        await self._noted()

    async def delete_machine(self, name: str) -> None:
        self.did(f"deletes {name}")
        self.judge.asked_for.add(name)
        with suppress(NotFound):
            await self.sim.world.client.delete(MACHINE.resource, name, namespace="fleet-default")
        await self._noted()

    async def _noted(self) -> None:
        await asyncio.sleep(2 * SAME_MOMENT)

    # --- machines ---------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[SimulatedNode]:
        return sorted(self.sim.provider.nodes.values(), key=lambda node: node.name)

    def machine_of(self, node: SimulatedNode) -> str:
        return self.judge.machine_of(node)

    def can_be_lost(self, node: SimulatedNode) -> bool:
        """Without anybody having to restore a snapshot: etcd keeps its quorum, and is as large as it should be. Where
        it is being made smaller, those that leave and the one that is lost may be all that there are, and all that are
        left are given up when none is to stay."""
        cluster = self.sim.downstream
        if not cluster.has_api:
            return False
        wanted = sum(quantity for quantity, roles in self.wish.pools.values() if "etcd" in roles)
        if node.name not in cluster.members:
            return sum(each.running and each.has_api for each in self.nodes if each is not node) > 0
        return 3 <= len(cluster.members) == wanted == len(cluster.voters)

    # --- ways -------------------------------------------------------------------------------------------------------

    def choose_way(self) -> None:
        """All that follows by chance follows from the way that is taken here."""
        way = self._crossroads() if self._crossroads else ""
        if way:
            self.did(f"takes the way {way}")
            for random in (self.random, self.sim.world.random, self.sim.context.random):
                random.seed(f"{random.random()} {way}")

    # --- time -------------------------------------------------------------------------------------------------------

    async def pass_time(self, at_least: float, at_most: float) -> None:
        await asyncio.sleep(self.random.uniform(at_least, at_most))
        self.check()

    async def calm(self) -> None:
        self.did("all is calm")
        self.sim.calm()
        await self.until_settled()

    async def until_settled(self) -> None:
        try:
            await self.sim.world.until(self._is_settled, within=self._patience)
        except TimeoutError:
            told = f"not as asked for: {[*await self.differences(), *self._refusals()]}"
            if not self._stubborn:
                raise TimeoutError(told) from None
            self.disappointments.append(told)

    def _refusals(self) -> list[str]:
        """What the manager would do if it were let."""
        outcomes = [known for each in self.sim.world.manager.running.values() for known in each.outcomes.values()]
        return [str(known.refusal or known.error) for known in outcomes if known.refusal or known.error]

    async def _is_settled(self) -> bool:
        self.check()
        return not await self.differences()

    async def differences(self) -> list[str]:
        """Between what is asked for and the machines themselves; what objects say comes last."""
        found = [*self._differing_machines()]
        if found:
            return found
        beside = self.sim.world.workloads.client(self.sim.downstream.key)
        nodes = (await beside.list(NODE.resource)).items
        found += self._differing_nodes({node["metadata"]["name"] for node in nodes})
        found += [f"{n['metadata']['name']} is cordoned" for n in nodes if (n.get("spec") or {}).get("unschedulable")]
        for plane in await self.sim.all(CONTROL_PLANE):
            if not (is_true(plane, "Ready") and is_true(plane, "Reconciled")):
                told = [c.get("message") for c in plane["status"]["conditions"] if c["type"] == "Ready"]
                found.append(f"the control plane says {told}")
            if plane["status"].get("observedGeneration") != plane["metadata"]["generation"]:
                found.append("the control plane has not seen the last change")
        for provisioning in await self.sim.all(PROVISIONING_CLUSTER):
            if not is_true(provisioning, "Ready"):
                found.append("the Cluster is not Ready")
        for secret in self.judge.objects[PLAN_SECRET].values():
            if PlanSecret(secret).is_down:
                found.append(f"{secret['metadata']['name']}: {PlanSecret(secret).state}")
        return found

    def _differing_nodes(self, told: set[str]) -> list[str]:
        """Cluster API gives a Node up that it cannot delete for ten seconds, so an outage may leave one behind."""
        own = {node.name for node in self.nodes}
        left = told - own if not self.sim.downstream.outages else set()
        return [f"Nodes are {sorted(told)}"] if left or own - told else []

    def _differing_machines(self) -> list[str]:
        wish, nodes, machines = self.wish, self.nodes, self.judge.objects[MACHINE].values()
        found = [f"{m['metadata']['name']} goes" for m in machines if is_deleting(m)]
        if len(nodes) != wish.machines or len(machines) != wish.machines:
            found.append(f"{len(machines)} Machines with {len(nodes)} machines, and {wish.machines} wanted")
        marked = wish.config.get(MARK)
        for node in nodes:
            if not node.running or node.disk.installed is None:
                found.append(f"{node.name} is down")
            elif node.disk.installed.version != wish.version:
                found.append(f"{node.name} has {node.disk.installed.version}")
            elif node.config.get(MARK) != marked:
                found.append(f"{node.name} is told {json.dumps(node.config.get(MARK))}")
        members = sorted(self.sim.downstream.members)
        if members != [node.name for node in nodes if node.has_etcd]:
            found.append(f"members of etcd are {members}")
        return found
