"""Simulated clusters whose machines exist only as objects: simulated agents apply plans, and Nodes join as a
result."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from herder.api.capi.crds import CRDS as CAPI_CRDS
from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.capi.kinds import NAMESPACE as NAMESPACE_KIND
from herder.api.capi.names import CLUSTER_NAME as CAPI_CLUSTER_NAME
from herder.api.crds import SETTING_CRD
from herder.api.guards import GUARDS
from herder.api.management.crds import CRDS as MANAGEMENT_CRDS
from herder.api.rke import names, operations
from herder.api.rke.crds import CRDS as RKE_CRDS
from herder.api.rke.kinds import BEACON, BOOTSTRAP, CONTROL_PLANE, CUSTOM_MACHINE, PLAN_SECRET
from herder.api.rke.node import plan_secret as secrets
from herder.api.rke.node.plan_secret import PlanSecret, encoded, zipped
from herder.controllers.planner import controller
from herder.controllers.planner.plan import secret as plan_secrets
from herder.effects.join_token import ClusterTokens
from herder.effects.referenced_objects import ReferencedObjects
from herder.engine.client.client import Client
from herder.engine.meta.errors import Conflict, NotFound
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.executor import Guard
from herder.sim.faults import NONE, Faults
from herder.sim.world import World
from tests.support.builders import new_condition, new_manifest, object_reference

NAMESPACE, NAME = "fleet-default", "demo"
VERSION = "v1.33.4+k3s1"
ALL_ROLES = (names.ETCD_ROLE, names.CONTROL_PLANE_ROLE, names.WORKER_ROLE)
SERVER_ROLES = (names.ETCD_ROLE, names.CONTROL_PLANE_ROLE)
WORKER_ROLES = (names.WORKER_ROLE,)
WITHOUT_START = {operations.CHECK_SNAPSHOT, operations.RESTORE_SNAPSHOT}

NODE_INFO = (
    *("architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion"),
    *("machineID", "operatingSystem", "osImage", "systemUUID"),
)

Answer = Callable[[PlanSecret], bool]
"""Returns whether an agent succeeds with a plan."""


class SimulatedCluster:
    def __init__(
        self,
        seed: int = 0,
        *,
        faults: Faults = NONE,
        guards: tuple[Guard, ...] = GUARDS,
        answer: Answer = lambda _plan: True,
        invariant: Callable[[Kind, str, Object], None] | None = None,
        strict: bool = True,
        planner: Controller = controller.CONTROLLER,
    ) -> None:
        self.delivered: list[str] = []  # machines, in the order in which their agents started to apply a plan
        self.max_concurrent = 0  # the largest number of agents at work at the same time
        self.failure_output = "no space left"
        self.outputs: Mapping[str, bytes] = {}  # of instructions, which agents report with each plan that succeeds
        self._working = 0
        self._answer = answer
        self.silent: Answer = lambda _plan: False  # whether the agent does not even start a plan
        self._addresses: dict[str, str] = {}
        self._tasks: list[asyncio.Task[None]] = []

        async def tokens(arguments: Mapping[str, Any]) -> None:
            await ClusterTokens(self.client, self.world.random.randbytes)(arguments)

        async def read(arguments: Mapping[str, Any]) -> Object | None:
            return await ReferencedObjects(self.client)(arguments)

        self.world = World(
            seed,
            [planner, plan_secrets.CONTROLLER],
            crds=[*CAPI_CRDS, *MANAGEMENT_CRDS, *RKE_CRDS, SETTING_CRD],
            guards=guards,
            performers={names.MAKE_TOKENS: tokens, names.READ_OBJECT: read},
            faults=faults,
            watched=(PLAN_SECRET, CONTROL_PLANE, MACHINE) if invariant else (),
            invariant=invariant,
            strict=strict,
        )

    @property
    def client(self) -> Client:
        return self.world.client

    async def __aenter__(self) -> SimulatedCluster:
        await self.world.__aenter__()
        await self.client.create(NAMESPACE_KIND.resource, new_manifest(NAMESPACE_KIND, NAMESPACE))
        self._tasks.append(asyncio.ensure_future(self._agents()))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.world.__aexit__(kind, *rest)

    # --- user actions -----------------------------------------------------------------------------------------------

    async def create(self, version: str = VERSION, *, cluster_name: str = NAME, **spec: Any) -> None:
        name = cluster_name
        cluster = await self._create(CLUSTER, name, {"controlPlaneRef": object_reference(CONTROL_PLANE, name)})
        provisioned = {"status": {"initialization": {"infrastructureProvisioned": True}}}
        await self.client.patch(CLUSTER.resource, name, provisioned, namespace=NAMESPACE, subresource="status")
        owner = {"apiVersion": CLUSTER.api_version, "kind": "Cluster", "name": name, "uid": cluster["metadata"]["uid"]}
        desired = {"kubernetesVersion": version, "clusterName": name, "managementClusterName": "", **spec}
        await self._create(CONTROL_PLANE, name, desired, ownerReferences=[owner])
        await self._create(BEACON, name, {})

    async def add(self, name: str, roles: tuple[str, ...], *, address: str = "", cluster_name: str = NAME) -> None:
        """Add a machine whose infrastructure is ready and whose agent is registered."""
        self._addresses[name] = address or f"10.0.0.{len(self._addresses) + 11}"
        labels = {CAPI_CLUSTER_NAME: cluster_name, **dict.fromkeys(roles, "true")}
        await self._create(BOOTSTRAP, name, {"clusterName": cluster_name}, labels=labels)
        infrastructure = object_reference(CUSTOM_MACHINE, name)
        bootstrap = {"configRef": object_reference(BOOTSTRAP, name)}
        spec = {"clusterName": cluster_name, "bootstrap": bootstrap, "infrastructureRef": infrastructure}
        await self._create(MACHINE, name, spec, labels=labels)
        await self._status(MACHINE, name, {"conditions": [new_condition("InfrastructureReady")]})
        secret = new_manifest(
            PLAN_SECRET,
            names.plan_secret(name),
            NAMESPACE,
            labels={**labels, names.CLUSTER_NAME: cluster_name, names.MACHINE_NAME: name},
            annotations={names.INTERNAL_ADDRESS: self._addresses[name]},
            type=names.PLAN_SECRET_TYPE,
        )
        await self.client.create(PLAN_SECRET.resource, secret, namespace=NAMESPACE)

    async def edit(self, **spec: Any) -> None:
        await self.client.patch(CONTROL_PLANE.resource, NAME, {"spec": spec}, namespace=NAMESPACE)

    async def start_deletion(self, name: str) -> None:
        """Delete a Machine that a finalizer keeps until `finish_deletion`, as its pre-terminate hook would."""
        finalizer = {"metadata": {"finalizers": ["test.herder.io/held"]}}
        await self.client.patch(MACHINE.resource, name, finalizer, namespace=NAMESPACE)
        await self.client.delete(MACHINE.resource, name, namespace=NAMESPACE)

    async def finish_deletion(self, name: str) -> None:
        await self.client.patch(MACHINE.resource, name, {"metadata": {"finalizers": None}}, namespace=NAMESPACE)
        await self.client.delete(PLAN_SECRET.resource, names.plan_secret(name), namespace=NAMESPACE)

    async def is_ready(self, cluster_name: str = NAME) -> bool:
        control_plane = await self.control_plane(cluster_name)
        status = control_plane.get("status") or {}
        conditions = {each["type"]: each["status"] for each in status.get("conditions") or ()}
        current = status.get("observedGeneration") == control_plane["metadata"]["generation"]
        return current and conditions.get("Ready") == "True" and conditions.get("Reconciled") == "True"

    async def control_plane(self, cluster_name: str = NAME) -> Object:
        return await self.client.get(CONTROL_PLANE.resource, cluster_name, namespace=NAMESPACE)

    async def message(self) -> str:
        status = (await self.control_plane()).get("status") or {}
        return next((each.get("message", "") for each in status.get("conditions") or () if each["type"] == "Ready"), "")

    async def plan(self, machine: str) -> PlanSecret:
        return PlanSecret(await self.client.get(PLAN_SECRET.resource, names.plan_secret(machine), namespace=NAMESPACE))

    async def machine(self, name: str) -> Object:
        return await self.client.get(MACHINE.resource, name, namespace=NAMESPACE)

    # --- node actions -----------------------------------------------------------------------------------------------

    async def _agents(self) -> None:
        last_version = ""
        while True:
            events = self.client.watch(
                PLAN_SECRET.resource,
                namespace=NAMESPACE,
                fields=PLAN_SECRET.fields,
                resource_version=last_version,
                initial_events=not last_version,
            )
            async for event in events:
                last_version = event.object["metadata"]["resourceVersion"]
                if event.type not in ("BOOKMARK", "DELETED") and PlanSecret(event.object).state == secrets.PENDING:
                    self._tasks.append(asyncio.ensure_future(self._apply(PlanSecret(event.object))))

    async def _apply(self, plan: PlanSecret) -> None:
        """Apply a plan and report the result; do nothing if the plan changed since it was read."""
        if self.silent(plan):
            return
        started = {secrets.STATE: secrets.IN_PROGRESS, secrets.REVISION: str(plan.revision + 1)}
        try:
            await self._report(plan.name, started, plan.secret["metadata"]["resourceVersion"])
        except Conflict:
            return
        machine = plan.labels[names.MACHINE_NAME]
        self.delivered.append(machine)
        self._working += 1
        self.max_concurrent = max(self.max_concurrent, self._working)
        await asyncio.sleep(self.world.random.uniform(1, 20))
        succeeded = self._answer(plan)
        self._working -= 1
        probes = (
            "{" + ",".join(f'"{name}":{{"healthy":true}}' for name in plan.plan.probes) + "}" if plan.plan else "{}"
        )
        report: dict[str, str | bytes] = {
            secrets.STATE: secrets.SUCCEEDED,
            secrets.APPLIED_CHECKSUM: plan.checksum,
            secrets.PROBE_STATUSES: probes,
            **({secrets.APPLIED_OUTPUT: zipped(self.outputs)} if self.outputs else {}),
        }
        if not succeeded:
            evidence = json.dumps({"instruction": "install", "exitCode": 3, "tail": self.failure_output})
            report = {secrets.STATE: secrets.FAILED, secrets.FAILED_EVIDENCE: evidence}
        await self._report(plan.name, report)
        if succeeded and not operations.task_instructions(plan.plan) & WITHOUT_START:
            await self._join(machine, plan)

    async def report(self, machine: str, **data: str) -> None:
        """Report as a compromised machine does. Underscores in keys are hyphens."""
        await self._report(names.plan_secret(machine), {key.replace("_", "-"): value for key, value in data.items()})

    async def report_conditions(self, machine: str, *conditions: Object) -> None:
        """Set conditions of a Machine, which Cluster API copies from its Node."""
        status = {"conditions": [new_condition("InfrastructureReady"), *conditions]}
        await self._status(MACHINE, machine, status)

    async def report_kubelet(self, machine: str, version: str) -> None:
        """Set the version of a Machine's kubelet, which Cluster API copies from its Node."""
        info = (await self.machine(machine))["status"]["nodeInfo"]
        await self._status(MACHINE, machine, {"nodeInfo": {**info, "kubeletVersion": version}})

    async def _report(self, name: str, data: Mapping[str, str | bytes], version: str = "") -> None:
        patch: Object = {"data": {key: encoded(value) for key, value in data.items()}}
        if version:
            patch["metadata"] = {"resourceVersion": version}
        await self.client.patch(PLAN_SECRET.resource, name, patch, namespace=NAMESPACE)

    async def _join(self, machine: str, plan: PlanSecret) -> None:
        """Join the Node of a machine; the cluster agent connects with the first control-plane machine."""
        image = plan.plan.instructions[0].image if plan.plan else ""
        version = re.search(r":(v[\d.]+)-(.*)$", image)
        status = {
            "nodeInfo": {
                **dict.fromkeys(NODE_INFO, "x"),
                "kubeletVersion": f"{version[1]}+{version[2]}" if version else "",
            },
            "nodeRef": {"name": machine},
            "addresses": [{"type": "InternalIP", "address": self._addresses[machine]}],
        }
        try:
            await self._status(MACHINE, machine, status)
        except NotFound:
            return
        if plan.is_control_plane:
            await self._status(CONTROL_PLANE, plan.labels[names.CLUSTER_NAME], {"agentConnected": True})

    # --- helpers ----------------------------------------------------------------------------------------------------

    async def _create(self, kind: Kind, name: str, spec: Object, **metadata: Any) -> Object:
        obj = new_manifest(kind, name, NAMESPACE, metadata=metadata, spec=spec)
        return await self.client.create(kind.resource, obj, namespace=NAMESPACE)

    async def _status(self, kind: Kind, name: str, status: Object) -> None:
        await self.client.patch(kind.resource, name, {"status": status}, namespace=NAMESPACE, subresource="status")
