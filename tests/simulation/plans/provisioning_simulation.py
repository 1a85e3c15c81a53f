"""One provisioned cluster in a simulated deployment: its user, faults, and waits for the desired state."""

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
from herder.app.admission.kinds import install_admission, install_cluster_admission, install_restore_admission
from herder.app.manager import core_controllers, provisioning_controllers
from herder.controllers.provisioning import cluster_registration_token
from herder.controllers.provisioning.cluster import controller as provisioning_cluster
from herder.controllers.provisioning.management_cluster import controller as management_cluster
from herder.engine.apiserver.auth.users import SERVER
from herder.engine.apiserver.build import ApiServer
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.executor import Guard
from herder.sim.faults import Faults
from herder.sim.nodes import NO_AGENT_FAULTS, FaultRates, SimulatedNode
from herder.sim.provisioned import NAME, Provisioned, pool
from herder.sim.world import SAME_MOMENT
from tests.simulation.plans.invariants import WATCHED, PlanInvariants
from tests.simulation.plans.scripts.task_scripts import SCRIPTS

TIMEOUT = 3600.0
MARKER_OPTION = "kubelet-arg"


def controllers() -> list[Controller]:
    managed = (management_cluster, provisioning_cluster, cluster_registration_token)
    return [*core_controllers(), *(module.CONTROLLER for module in managed), *provisioning_controllers()]


def _admit(server: ApiServer) -> None:
    install_admission(server)
    install_restore_admission(server, Client(InProcess(server, SERVER)))
    install_cluster_admission(server)


@dataclass
class DesiredState:
    """What the user wants now."""

    version: str
    pools: dict[str, tuple[int, tuple[str, ...]]]  # by name: quantity and roles
    config: dict[str, Any] = field(default_factory=dict)
    strategy: dict[str, Any] = field(default_factory=dict)
    generation: int = 0
    etcd: dict[str, Any] = field(default_factory=dict)

    @property
    def machines(self) -> int:
        return sum(quantity for quantity, _ in self.pools.values())

    def pool_objects(self) -> list[Object]:
        return [pool(name, quantity, *roles) for name, (quantity, roles) in self.pools.items()]


class ProvisioningSimulation:
    def __init__(
        self,
        seed: int,
        faults: Faults,
        troubles: FaultRates = NO_AGENT_FAULTS,
        guards: Sequence[Guard] = GUARDS,
        timeout: float = TIMEOUT,
        keep_going: bool = False,
        strict: bool = True,
        branch: Callable[[], str] | None = None,
        distribution: str = "",
    ) -> None:
        """`keep_going`: continue after the cluster failed to reach the desired state, and record the failure. `branch`
        returns the path of branches at a branching point. `distribution`: kubeadm or embedded; empty: K3s or RKE2, by
        the seed."""
        self.distribution = distribution
        self._marker = "tls-san" if distribution == "embedded" else MARKER_OPTION
        self.random = Random(f"user {seed}")
        self.invariants = PlanInvariants(lambda: asyncio.get_running_loop().time())
        self.desired = DesiredState("", {})
        self.actions: list[str] = []
        self.failures: list[str] = []
        self._timeout = timeout
        self._keep_going = keep_going
        self._branch = branch
        self.sim = Provisioned(
            seed,
            controllers(),
            faults=faults,
            troubles=troubles,
            guards=guards,
            witness=self.invariants,
            watched=WATCHED,
            invariant=self.invariants,
            prepare=_admit,
            strict=strict,
            scripts=SCRIPTS,
        )

    async def __aenter__(self) -> ProvisioningSimulation:
        await self.sim.__aenter__()
        self.invariants.cluster = self.sim.downstream
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self.sim.__aexit__(*failure)

    def check(self) -> None:
        self.invariants.check()
        self.sim.check()

    def log_action(self, what: str) -> None:
        self.actions.append(f"{asyncio.get_running_loop().time():.1f} {what}")

    # --- the user -----------------------------------------------------------------------------------------------------

    async def create_cluster(self, desired: DesiredState) -> None:
        self.desired = desired
        self.log_action(f"requests {desired}")
        config = {"machineGlobalConfig": desired.config, "upgradeStrategy": desired.strategy, "etcd": desired.etcd}
        await self.sim.ask_for(desired.version, *desired.pool_objects(), **config)

    async def upgrade(self, version: str) -> None:
        self.desired.version = version
        self.log_action(f"upgrades to {version}")
        await self.sim.edit({"kubernetesVersion": version})

    async def configure(self, value: str) -> None:
        self.desired.config = {self._marker: [value]}
        self.log_action(f"configures {value}")
        await self.sim.edit({"rkeConfig": {"machineGlobalConfig": self.desired.config}})

    async def scale(self, name: str, quantity: int) -> None:
        self.desired.pools[name] = (quantity, self.desired.pools[name][1])
        self.log_action(f"scales {name} to {quantity}")
        await self.sim.edit({"rkeConfig": {"machinePools": self.desired.pool_objects()}})

    async def change_strategy(self, strategy: dict[str, Any]) -> None:
        self.desired.strategy = strategy
        self.log_action(f"wants {strategy}")
        await self.sim.edit({"rkeConfig": {"upgradeStrategy": strategy}})

    async def restart_all(self) -> None:
        self.desired.generation += 1
        self.log_action("restarts all")
        await self.sim.edit({"rkeConfig": {"provisionGeneration": self.desired.generation}})

    async def pause(self, paused: bool) -> None:
        self.log_action("pauses the cluster" if paused else "resumes it")
        with suppress(NotFound):
            await self.sim.patch(CLUSTER, NAME, {"spec": {"paused": paused}})
        await self._wait_until_recorded()

    async def pause_machine(self, name: str, paused: bool) -> None:
        self.log_action(f"{'pauses' if paused else 'resumes'} {name}")
        body = {"metadata": {"annotations": {PAUSED: "true" if paused else None}}}
        with suppress(NotFound):
            await self.sim.patch(MACHINE, name, body)
        await self._wait_until_recorded()

    async def delete_machine(self, name: str) -> None:
        self.log_action(f"deletes {name}")
        self.invariants.deleted_by_user.add(name)
        with suppress(NotFound):
            await self.sim.world.client.delete(MACHINE.resource, name, namespace="fleet-default")
        await self._wait_until_recorded()

    async def _wait_until_recorded(self) -> None:
        await asyncio.sleep(2 * SAME_MOMENT)

    # --- machines -----------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[SimulatedNode]:
        return sorted(self.sim.provider.nodes.values(), key=lambda node: node.name)

    def machine_of(self, node: SimulatedNode) -> str:
        return self.invariants.machine_of(node)

    def can_be_destroyed(self, node: SimulatedNode) -> bool:
        """Whether the cluster survives without a restore: etcd keeps its quorum and has its desired size.

        While etcd is scaled down, the leaving members and the destroyed one may be all that there are, and the last
        ones are given up when none remains.
        """
        cluster = self.sim.downstream
        if not cluster.has_api:
            return False
        wanted = sum(quantity for quantity, roles in self.desired.pools.values() if "etcd" in roles)
        if node.name not in cluster.members:
            return sum(each.running and each.has_api for each in self.nodes if each is not node) > 0
        return 3 <= len(cluster.members) == wanted == len(cluster.voters)

    # --- branches -----------------------------------------------------------------------------------------------------

    def take_branch(self) -> None:
        """All later random choices follow from the branch that is taken here."""
        branch = self._branch() if self._branch else ""
        if branch:
            self.log_action(f"takes branch {branch}")
            for random in (self.random, self.sim.world.random, self.sim.context.random):
                random.seed(f"{random.random()} {branch}")

    # --- time ---------------------------------------------------------------------------------------------------------

    async def pass_time(self, at_least: float, at_most: float) -> None:
        await asyncio.sleep(self.random.uniform(at_least, at_most))
        self.check()

    async def stop_faults(self) -> None:
        self.log_action("faults stop")
        self.sim.calm()
        await self.until_settled()

    async def until_settled(self) -> None:
        try:
            await self.sim.world.until(self._is_settled, within=self._timeout)
        except TimeoutError:
            message = f"not as desired: {[*await self.differences(), *self._refusals()]}"
            if not self._keep_going:
                raise TimeoutError(message) from None
            self.failures.append(message)

    def _refusals(self) -> list[str]:
        """What guards and errors prevent the manager from doing."""
        outcomes = [known for each in self.sim.world.manager.running.values() for known in each.outcomes.values()]
        return [str(known.refusal or known.error) for known in outcomes if known.refusal or known.error]

    async def _is_settled(self) -> bool:
        self.check()
        return not await self.differences()

    async def differences(self) -> list[str]:
        """Differences between the desired state and the machines themselves; the status of objects comes last."""
        found = [*self._machine_differences()]
        if found:
            return found
        workload = self.sim.world.workloads.client(self.sim.downstream.key)
        nodes = (await workload.list(NODE.resource)).items
        found += self._node_differences({node["metadata"]["name"] for node in nodes})
        found += [f"{n['metadata']['name']} is cordoned" for n in nodes if (n.get("spec") or {}).get("unschedulable")]
        for plane in await self.sim.all(CONTROL_PLANE):
            if not (is_true(plane, "Ready") and is_true(plane, "Reconciled")):
                messages = [c.get("message") for c in plane["status"]["conditions"] if c["type"] == "Ready"]
                found.append(f"the control plane reports {messages}")
            if plane["status"].get("observedGeneration") != plane["metadata"]["generation"]:
                found.append("the control plane has not observed the last change")
        for provisioning in await self.sim.all(PROVISIONING_CLUSTER):
            if not is_true(provisioning, "Ready"):
                found.append("the Cluster is not Ready")
        for secret in self.invariants.objects[PLAN_SECRET].values():
            if PlanSecret(secret).is_down:
                found.append(f"{secret['metadata']['name']}: {PlanSecret(secret).state}")
        return found

    def _node_differences(self, names: set[str]) -> list[str]:
        """Cluster API gives up deleting a Node after ten seconds, so an outage may leave one behind."""
        own = {node.name for node in self.nodes}
        leftover = names - own if not self.sim.downstream.outages else set()
        return [f"Nodes are {sorted(names)}"] if leftover or own - names else []

    def _machine_differences(self) -> list[str]:
        desired, nodes, machines = self.desired, self.nodes, self.invariants.objects[MACHINE].values()
        found = [f"{m['metadata']['name']} is being deleted" for m in machines if is_deleting(m)]
        if len(nodes) != desired.machines or len(machines) != desired.machines:
            found.append(f"{len(machines)} Machines with {len(nodes)} machines, and {desired.machines} wanted")
        expected = desired.config.get(self._marker)
        for node in nodes:
            if not node.running or node.disk.installed is None:
                found.append(f"{node.name} is down")
            elif node.disk.installed.version != desired.version:
                found.append(f"{node.name} has {node.disk.installed.version}")
            elif node.config.get(self._marker) != expected:
                found.append(f"{node.name} is configured with {json.dumps(node.config.get(self._marker))}")
        members = sorted(self.sim.downstream.members)
        if members != [node.name for node in nodes if node.has_etcd]:
            found.append(f"etcd members are {members}")
        return found
