"""A fake API server for the controllers of MachineSets and MachineDeployments: decisions are executed at once.

It supports what repeated reconciles need: merge patches, server-side applies that remove fields which their manager no
longer sets, finalizers, generations, resource versions, and conflicts of patches of an outdated object.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from herder.api.capi.conditions import condition, merged, timestamp
from herder.api.capi.kinds import MACHINE
from herder.engine.meta.kinds import Kind, Object
from herder.engine.patch import apply_merge_patch
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import Apply, Decision, Delete, Patch, Refusal, Write
from herder.engine.runtime.view import View
from tests.support.builders import reconcile, writes_of
from tests.support.views import NOW, view_of
from tests.unit.controllers.capi.objects import NAMESPACE, PROVIDER_KINDS

ObjectKey = tuple[str, str, str]


class FakeServer:
    """Stores objects, reconciles one of them at a time, and executes the decisions."""

    def __init__(self, objects: Iterable[Object] = (), now: datetime = NOW) -> None:
        self.now = now
        self.writes: list[Write] = []
        self.refused: Refusal | None = None  # by a guard, of the last decision
        self._objects: dict[ObjectKey, Object] = {}
        self._applied: dict[tuple[ObjectKey, str], Object] = {}
        self._revision = 100
        for obj in objects:
            self.put(obj)

    # --- reads -------------------------------------------------------------------------------------------------------

    def all(self, kind: Kind) -> list[Object]:
        return [obj for key, obj in sorted(self._objects.items()) if key[:1] == (f"{kind.group}/{kind.kind}",)]

    def get(self, kind: Kind, name: str) -> Object:
        return self._objects[_key(kind.group, kind.kind, NAMESPACE, name)]

    def has(self, kind: Kind, name: str) -> bool:
        return _key(kind.group, kind.kind, NAMESPACE, name) in self._objects

    def view(self, controller: Controller, name: str) -> View:
        return view_of(controller, f"{NAMESPACE}/{name}", self._objects.values(), **self._view_options())

    def _view_options(self) -> dict[str, Any]:
        return {"now": self.now, "dynamic_kinds": PROVIDER_KINDS, "refused": self.refused}

    # --- reconciles and writes ---------------------------------------------------------------------------------------

    def decide(self, controller: Controller, name: str) -> Decision:
        """One reconcile, whose decision is not executed."""
        return reconcile(controller, f"{NAMESPACE}/{name}", *self._objects.values(), **self._view_options())

    def reconcile(self, controller: Controller, name: str, passes: int = 1) -> Decision:
        """Reconcile so many times, and return the last decision."""
        decision = Decision()
        for _ in range(passes):
            decision = self.decide(controller, name)
            self.execute(decision)
        return decision

    def settle(self, controller: Controller, name: str, limit: int = 50) -> int:
        """Reconcile until nothing is left to write, and return the number of reconciles that wrote."""
        for number in range(limit):
            before = len(self.writes)
            self.reconcile(controller, name)
            if len(self.writes) == before:
                return number
        raise AssertionError(
            f"{name} does not settle in {limit} reconciles: {[write.reason for write in self.writes[-5:]]}"
        )

    def execute(self, decision: Decision) -> None:
        for write in writes_of(decision):
            if self._write(write):
                self.writes.append(write)

    def _write(self, write: Write) -> bool:
        match write:
            case Apply():
                return self._apply(write)
            case Patch():
                return self._patch(write)
            case Delete():
                return self._delete(write)
        raise NotImplementedError(type(write))

    def _apply(self, write: Apply) -> bool:
        key = _key_of(write.obj)
        before = self._objects.get(key)
        manager_key = (key, write.manager)
        last_applied = self._applied.get(manager_key, {})
        self._applied[manager_key] = write.obj
        after = _merged(_without_dropped_fields(before or {}, last_applied, write.obj), write.obj)
        if after == before:
            return False
        return self.put(after) is not None

    def _patch(self, write: Patch) -> bool:
        key = _key(write.ref.kind.group, write.ref.kind.kind, write.ref.namespace, write.ref.name)
        before = self._objects[key]
        assert write.resource_version in ("", before["metadata"]["resourceVersion"]), f"stale patch: {write.reason}"
        after = apply_merge_patch(before, write.patch)
        if after == before:
            return False
        if after["metadata"].get("deletionTimestamp") and not after["metadata"].get("finalizers"):
            del self._objects[key]
        else:
            self.put(after)
        return True

    def _delete(self, write: Delete) -> bool:
        key = _key(write.ref.kind.group, write.ref.kind.kind, write.ref.namespace, write.ref.name)
        before = self._objects.get(key)
        if before is None or before["metadata"]["uid"] != write.uid or before["metadata"].get("deletionTimestamp"):
            return False
        if before["metadata"].get("finalizers"):
            self.put(apply_merge_patch(before, {"metadata": {"deletionTimestamp": timestamp(self.now)}}))
        else:
            del self._objects[key]
        return True

    # --- changes by users and other controllers ----------------------------------------------------------------------

    def put(self, obj: Object) -> Object:
        key = _key_of(obj)
        before = self._objects.get(key)
        self._revision += 1
        meta = {
            "uid": f"{obj['kind']}-{obj['metadata']['name']}-{self._revision}",
            "creationTimestamp": timestamp(self.now),
            "generation": 1,
            **obj["metadata"],
            "resourceVersion": str(self._revision),
        }
        if before is not None and before.get("spec") != obj.get("spec"):
            meta["generation"] += 1
        self._objects[key] = {**obj, "metadata": meta}
        return self._objects[key]

    def change(self, obj: Object, patch: Object) -> Object:
        return self.put(apply_merge_patch(self._objects[_key_of(obj)], patch))

    def remove(self, obj: Object) -> None:
        del self._objects[_key_of(obj)]

    def report_conditions(self, machine: Object, *conditions: Object, **status: Any) -> Object:
        before = machine.get("status") or {}
        conditions_after = merged(before.get("conditions"), conditions, self.now)
        return self.change(machine, {"status": {**status, "conditions": conditions_after}})

    def make_available(self, machines: Iterable[Object]) -> None:
        for machine in machines:
            healthy = [condition(type_, "True", type_) for type_ in _HEALTHY_CONDITIONS]
            self.report_conditions(
                machine,
                *healthy,
                nodeRef={"name": machine["metadata"]["name"]},
                initialization={"infrastructureProvisioned": True},
            )

    def finish_deletions(self) -> None:
        for machine in self.all(MACHINE):
            if machine["metadata"].get("deletionTimestamp"):
                self.remove(machine)

    def pass_time(self, **delta: float) -> None:
        self.now += timedelta(**delta)


_HEALTHY_CONDITIONS = (
    "Ready",
    "Available",
    "UpToDate",
    "NodeReady",
    "NodeHealthy",
    "BootstrapConfigReady",
    "InfrastructureReady",
)


def _key_of(obj: Object) -> ObjectKey:
    group = obj["apiVersion"].rpartition("/")[0]
    return _key(group, obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"])


def _key(group: str, kind: str, namespace: str, name: str) -> ObjectKey:
    return f"{group}/{kind}", namespace, name


def _merged(before: Any, after: Any) -> Any:
    if isinstance(before, dict) and isinstance(after, dict):
        return {**before, **{name: _merged(before.get(name), value) for name, value in after.items()}}
    return after


def _without_dropped_fields(live: Any, last_applied: Any, now_applied: Any) -> Any:
    """`live` without the fields that the manager applied last time and no longer applies."""
    if not isinstance(live, dict) or not isinstance(last_applied, dict):
        return live
    applied = now_applied if isinstance(now_applied, dict) else {}
    return {
        name: _without_dropped_fields(value, last_applied.get(name), applied.get(name))
        for name, value in live.items()
        if name not in last_applied or name in applied
    }
