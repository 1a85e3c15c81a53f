"""A Machine with everything around it, for single passes of its reconciler; and passes until nothing is left to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.api.capi.names import CLUSTER_NAME, MACHINE_FINALIZER, cluster_key
from herder.api.capi.nodes import NODE_RECORD
from herder.api.settings import Settings
from herder.controllers.capi.machine.controller import CONTROLLER, reconcile
from herder.engine.meta.kinds import Kind, Object
from herder.engine.patch import apply_merge_patch
from herder.engine.runtime.decision import Decision, Observe, Parallel, Patch
from herder.engine.runtime.view import ConnectionStatus, Observed, Unreachable
from tests.support.views import NOW, view_of

WORKLOAD = cluster_key("farm", "north")
LONG_AGO = "2026-01-01T10:00:00Z"

INFRA = Kind("infrastructure.example", "v1", "PaddockMachine", "paddockmachines")
CONFIG = Kind("bootstrap.example", "v1", "PaddockConfig", "paddockconfigs")
CONTROL_PLANE = Kind("controlplane.example", "v1", "PaddockControlPlane", "paddockcontrolplanes")


def definition(kind: Kind, contract: str) -> Object:
    meta = {"name": f"{kind.plural}.{kind.group}", "labels": {f"cluster.x-k8s.io/{contract}": kind.version}}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": meta}


def made(kind: Kind, name: str, **parts: Any) -> Object:
    meta = {"name": name, "namespace": "farm", "creationTimestamp": LONG_AGO, "uid": f"{kind.kind}-{name}"}
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": meta | parts.pop("metadata", {}),
        "spec": parts.pop("spec", {}),
        "status": parts.pop("status", {}),
    } | parts


def owner(kind: Kind, name: str, *, controller: bool = True) -> Object:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": name,
        "uid": f"{kind.kind}-{name}",
        "controller": controller,
        "blockOwnerDeletion": True,
    }


def cluster(**parts: Any) -> Object:
    initialized = {"type": "ControlPlaneInitialized", "status": "True", "lastTransitionTime": LONG_AGO}
    status = {"initialization": {"infrastructureProvisioned": True}, "conditions": [initialized]}
    return made(CLUSTER, "north", **({"status": status} | parts))


def machine(spec: Object | None = None, **parts: Any) -> Object:
    meta = {
        "generation": 1,
        "labels": {CLUSTER_NAME: "north", "cluster.x-k8s.io/set-name": "wool"},
        "ownerReferences": [owner(MACHINE_SET, "wool")],
        "finalizers": [MACHINE_FINALIZER],
    }
    wanted = {
        "clusterName": "north",
        "bootstrap": {"configRef": {"apiGroup": CONFIG.group, "kind": CONFIG.kind, "name": "ewe"}},
        "infrastructureRef": {"apiGroup": INFRA.group, "kind": INFRA.kind, "name": "ewe"},
    }
    parts["metadata"] = meta | parts.get("metadata", {})
    return made(MACHINE, "ewe", spec=wanted | (spec or {}), **parts)


def infra(**parts: Any) -> Object:
    return made(INFRA, "ewe", **_of_machine(parts))


def config(**parts: Any) -> Object:
    return made(CONFIG, "ewe", **_of_machine(parts))


def _of_machine(parts: Object) -> Object:
    meta = {"labels": {CLUSTER_NAME: "north"}, "ownerReferences": [owner(MACHINE, "ewe")]}
    return parts | {"metadata": meta | parts.get("metadata", {})}


def machine_set(spec: Object | None = None, *, revision: str = "1") -> Object:
    meta = {
        "labels": {"cluster.x-k8s.io/deployment-name": "flock"},
        "annotations": {"machinedeployment.clusters.x-k8s.io/revision": revision},
    }
    return made(MACHINE_SET, "wool", metadata=meta, spec={"template": {"spec": spec or {}}})


def deployment(spec: Object | None = None, *, revision: str = "1", **more: Any) -> Object:
    meta = {"annotations": {"machinedeployment.clusters.x-k8s.io/revision": revision}}
    return made(MACHINE_DEPLOYMENT, "flock", metadata=meta, spec={"template": {"spec": spec or {}}, **more})


HEALTHY = {"Ready": "True", "MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False"}


def node(name: str = "ewe-node", conditions: dict[str, Any] | None = None, **parts: Any) -> Object:
    """A condition's value is its status, or its status and its message."""
    told = []
    for type_, said in (HEALTHY if conditions is None else conditions).items():
        status, message = said if isinstance(said, tuple) else (said, "")
        told.append({"type": type_, "status": status, "message": message, "lastTransitionTime": LONG_AGO})
    meta = {"name": name, "uid": f"uid-{name}", "resourceVersion": "77"} | parts.pop("metadata", {})
    spec = {"providerID": "paddock://ewe"} | parts.pop("spec", {})
    whole = {"metadata": meta, "spec": spec, "status": {"conditions": told, "nodeInfo": {"kubeletVersion": "v1.36.0"}}}
    return NODE_RECORD.project(whole)


@dataclass
class Stage:
    """Objects of both clusters; passes change them as the API servers would."""

    machine: Object = field(default_factory=machine)
    objects: list[Object] = field(default_factory=lambda: [cluster(), infra(), config()])
    nodes: list[Object] | Unreachable | None = field(default_factory=list)
    contract: str = "v1beta2"
    connection: ConnectionStatus | None = None
    settings: dict[str, str] = field(default_factory=dict)
    now: datetime = NOW

    def decide(self) -> Decision:
        kinds = (INFRA, CONFIG, CONTROL_PLANE)
        definitions = [definition(kind, self.contract) for kind in kinds]
        connections = {WORKLOAD: self.connection} if self.connection else {}
        view = view_of(
            CONTROLLER,
            "farm/ewe",
            [self.machine, *self.objects, *definitions],
            now=self.now,
            followed=kinds,
            observed=self._observed,
            connections=connections,
            settings=Settings(flags=self.settings).get,
        )
        decision = reconcile(view)
        view.check_unchanged()
        return decision

    def _observed(self, subscription: Observe) -> Observed | Unreachable | None:
        assert subscription.cluster == WORKLOAD
        if not isinstance(self.nodes, list):
            return self.nodes
        assert subscription.focus is not None
        assert subscription.projection is not None
        index, value = subscription.focus
        found = [node for node in self.nodes if value in subscription.projection.indexes[index](node)]
        return Observed(tuple(found), self.now)

    def settle(self, *, patiently: bool = False) -> list[Patch]:
        """Passes until one writes nothing; what was written. Patiently: no write that may wait is made."""
        made: list[Patch] = []
        for _ in range(10):
            writes = [write for write in patches(self.decide()) if not (patiently and write.debounce)]
            if not writes:
                return made
            made += writes
            for write in writes:
                self._write(write)
        raise AssertionError(f"it never settles: {made[-3:]}")

    def _write(self, patch: Patch) -> None:
        """One request: the object as it is read next, and its generation if its spec changed."""

        def patched(obj: Object) -> Object:
            if (obj["kind"], obj["metadata"]["name"]) != (patch.ref.kind.kind, patch.ref.name):
                return obj
            after = apply_merge_patch(obj, patch.patch)
            generation = obj["metadata"].get("generation", 1) + (after.get("spec") != obj.get("spec"))
            return {**after, "metadata": {**after["metadata"], "generation": generation}}

        self.machine = patched(self.machine)
        self.objects = [patched(obj) for obj in self.objects]
        if isinstance(self.nodes, list) and patch.target == WORKLOAD:
            self.nodes = [NODE_RECORD.project(patched(node)) for node in self.nodes]

    def status(self) -> Object:
        self.settle()
        told: Object = self.machine["status"]
        return told

    def condition(self, type_: str) -> tuple[str, str, str]:
        return _said(self.status()["conditions"], type_, ("status", "reason", "message"))  # type: ignore[return-value]

    def legacy(self, type_: str) -> tuple[str, ...]:
        known = self.status()["deprecated"]["v1beta1"]["conditions"]
        return _said(known, type_, ("status", "reason", "severity", "message"))


def _said(conditions: list[Object], type_: str, fields: tuple[str, ...]) -> tuple[str, ...]:
    found = next(known for known in conditions if known["type"] == type_)
    return tuple(found.get(name, "") for name in fields)


def patches(decision: Decision) -> list[Patch]:
    flat = [each for write in decision.writes for each in (write.writes if isinstance(write, Parallel) else (write,))]
    assert all(isinstance(write, Patch) for write in flat), flat
    return [write for write in flat if isinstance(write, Patch)]


def provisioned(contract: str = "v1beta2", **status: Any) -> Callable[[], Object]:
    flag: Object = {"initialization": {"provisioned": True}} if contract == "v1beta2" else {"ready": True}
    return lambda: infra(spec={"providerID": "paddock://ewe"}, status=flag | status)


def running(**parts: Any) -> Stage:
    """A Machine whose providers are done."""
    bootstrapped = config(status={"initialization": {"dataSecretCreated": True}, "dataSecretName": "ewe-data"})
    stage = Stage(objects=[cluster(), provisioned()(), bootstrapped], nodes=[node()])
    for name, value in parts.items():
        setattr(stage, name, value)
    return stage
