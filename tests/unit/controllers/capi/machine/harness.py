"""A harness that reconciles one Machine until nothing is left to write."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from herder.api.capi.names import cluster_key
from herder.api.capi.nodes import NODE_RECORD
from herder.api.settings import Settings
from herder.controllers.capi.machine.controller import CONTROLLER
from herder.engine.meta.kinds import Object
from herder.engine.patch import apply_merge_patch
from herder.engine.runtime.decision import Decision, Observe, Patch
from herder.engine.runtime.view import ConnectionStatus, Observed, Unreachable
from tests.support.builders import (
    condition_fields,
    legacy_condition_of,
    new_definition,
    patches_of,
    reconcile,
    writes_of,
)
from tests.support.views import NOW
from tests.unit.controllers.capi.machine.objects import (
    CONFIG,
    CONTROL_PLANE,
    INFRA,
    cluster,
    config,
    infra,
    machine,
    node,
    provisioned_infra,
)

WORKLOAD = cluster_key("farm", "north")


@dataclass
class MachineHarness:
    """A Machine and the objects of both clusters. Reconciles patch them as the API servers would."""

    machine: Object = field(default_factory=machine)
    objects: list[Object] = field(default_factory=lambda: [cluster(), infra(), config()])
    nodes: list[Object] | Unreachable | None = field(default_factory=list)
    contract: str = "v1beta2"
    connection: ConnectionStatus | None = None
    settings: dict[str, str] = field(default_factory=dict)
    now: datetime = NOW

    def reconcile(self) -> Decision:
        """One reconcile, whose decision is not executed."""
        kinds = (INFRA, CONFIG, CONTROL_PLANE)
        return reconcile(
            CONTROLLER,
            "farm/ewe",
            self.machine,
            *self.objects,
            *(new_definition(kind, self.contract) for kind in kinds),
            now=self.now,
            dynamic_kinds=kinds,
            observed=self._observed,
            connections={WORKLOAD: self.connection} if self.connection else {},
            settings=Settings(flags=self.settings).get,
        )

    def _observed(self, subscription: Observe) -> Observed | Unreachable | None:
        assert subscription.cluster == WORKLOAD
        if not isinstance(self.nodes, list):
            return self.nodes
        assert subscription.focus is not None
        assert subscription.projection is not None
        index, value = subscription.focus
        matching = [node for node in self.nodes if value in subscription.projection.indexes[index](node)]
        return Observed(tuple(matching), self.now)

    def settle(self, *, skip_debounced: bool = False) -> list[Patch]:
        """Reconcile until nothing is left to write, and return the patches; optionally without debounced ones."""
        written: list[Patch] = []
        for _ in range(10):
            writes = [write for write in patches(self.reconcile()) if not (skip_debounced and write.debounce)]
            if not writes:
                return written
            written += writes
            for write in writes:
                self._write(write)
        raise AssertionError(f"the Machine does not settle: {written[-3:]}")

    def _write(self, patch: Patch) -> None:
        """Apply a patch to the stored objects, and increment the generation if the spec changes."""

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
        status: Object = self.machine["status"]
        return status

    def condition(self, type_: str) -> tuple[str, str, str]:
        self.settle()
        return condition_fields(self.machine, type_)

    def legacy_condition(self, type_: str) -> tuple[str, ...]:
        """Status, reason, severity and message of a v1beta1 condition."""
        self.settle()
        found = legacy_condition_of(self.machine, type_)
        return tuple(found.get(name, "") for name in ("status", "reason", "severity", "message"))


def patches(decision: Decision) -> list[Patch]:
    """The writes of a decision, all of which must be patches."""
    found = patches_of(decision)
    assert len(found) == len(writes_of(decision)), decision.writes
    return found


def running(**overrides: Any) -> MachineHarness:
    """A harness with a Machine whose providers have finished and whose Node is healthy."""
    bootstrapped = config(status={"initialization": {"dataSecretCreated": True}, "dataSecretName": "ewe-data"})
    harness = MachineHarness(objects=[cluster(), provisioned_infra(), bootstrapped], nodes=[node()])
    for name, value in overrides.items():
        setattr(harness, name, value)
    return harness
