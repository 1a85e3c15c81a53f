"""A small world for the controllers of sets: objects in a dictionary, decisions carried out on them at once.

Enough of an API server for many passes in a row: merge patches, applies that take away what their manager no longer
says, finalizers, generations, revisions, and refusals of patches that were decided on an older object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from herder.api.capi.conditions import merged
from herder.api.capi.kinds import MACHINE
from herder.engine.meta.kinds import Kind, Object
from herder.engine.patch import apply_merge_patch
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import Apply, Decision, Delete, Parallel, Patch, Refusal, Write
from herder.engine.runtime.view import View
from tests.support.views import NOW, view_of

NAMESPACE = "default"
GROUP = "infrastructure.example.io"
BOOT_GROUP = "bootstrap.example.io"
INFRA = Kind(GROUP, "v1", "TestMachine", "testmachines")
INFRA_TEMPLATE = Kind(GROUP, "v1", "TestMachineTemplate", "testmachinetemplates")
BOOT = Kind(BOOT_GROUP, "v1", "TestConfig", "testconfigs")
BOOT_TEMPLATE = Kind(BOOT_GROUP, "v1", "TestConfigTemplate", "testconfigtemplates")
CONTROL = Kind("controlplane.example.io", "v1", "TestControlPlane", "testcontrolplanes")
PROVIDED = (INFRA, INFRA_TEMPLATE, BOOT, BOOT_TEMPLATE, CONTROL)

Word = tuple[str, str, str]


def definition(kind: Kind) -> Object:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{kind.plural}.{kind.group}",
            "labels": {"cluster.x-k8s.io/v1beta2": kind.version},
        },
    }


def template(kind: Kind, name: str, **spec: Any) -> Object:
    pattern = {"metadata": {"labels": {"from": "template"}}, "spec": spec}
    return made(kind, name, spec={"template": pattern})


def made(kind: Kind, name: str, *, spec: Object | None = None, **metadata: Any) -> Object:
    meta = {"name": name, "namespace": NAMESPACE, **metadata}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, "spec": spec or {}}


def cluster(**spec: Any) -> Object:
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Cluster",
        "metadata": {"name": "herd", "namespace": NAMESPACE, "uid": "Cluster-herd"},
        "spec": spec,
    }


def machine_template(**spec: Any) -> Object:
    return {
        "metadata": {"labels": {"cluster.x-k8s.io/cluster-name": "herd"}},
        "spec": {
            "clusterName": "herd",
            "bootstrap": {"configRef": {"apiGroup": BOOT_GROUP, "kind": BOOT_TEMPLATE.kind, "name": "boot"}},
            "infrastructureRef": {"apiGroup": GROUP, "kind": INFRA_TEMPLATE.kind, "name": "infra"},
            **spec,
        },
    }


def surroundings() -> list[Object]:
    """A Cluster, both templates, and the definitions of all that is provided."""
    return [
        cluster(),
        template(INFRA_TEMPLATE, "infra", size=3),
        template(BOOT_TEMPLATE, "boot"),
        *map(definition, PROVIDED),
    ]


class World:
    def __init__(self, objects: Iterable[Object] = (), now: datetime = NOW) -> None:
        self.now = now
        self.writes: list[Write] = []
        self.refused: Refusal | None = None  # by a guard, of what was decided last
        self._objects: dict[Word, Object] = {}
        self._applied: dict[tuple[Word, str], Object] = {}
        self._revision = 100
        for obj in objects:
            self.put(obj)

    # --- looking ------------------------------------------------------------------------------------------------

    def all(self, kind: Kind) -> list[Object]:
        return [obj for word, obj in sorted(self._objects.items()) if word[:1] == (f"{kind.group}/{kind.kind}",)]

    def get(self, kind: Kind, name: str) -> Object:
        return self._objects[_word(kind.group, kind.kind, NAMESPACE, name)]

    def has(self, kind: Kind, name: str) -> bool:
        return _word(kind.group, kind.kind, NAMESPACE, name) in self._objects

    def view(self, controller: Controller, name: str) -> View:
        key, objects = f"{NAMESPACE}/{name}", self._objects.values()
        return view_of(controller, key, objects, now=self.now, followed=PROVIDED, refused=self.refused)

    # --- deciding and doing -------------------------------------------------------------------------------------

    def decide(self, controller: Controller, name: str) -> Decision:
        view = self.view(controller, name)
        decision = controller.reconcile(view)
        view.check_unchanged()
        return decision

    def reconcile(self, controller: Controller, name: str, passes: int = 1) -> Decision:
        decision = Decision()
        for _ in range(passes):
            decision = self.decide(controller, name)
            self.carry_out(decision)
        return decision

    def settle(self, controller: Controller, name: str, limit: int = 50) -> int:
        """Passes until nothing is left to write."""
        for number in range(limit):
            before = len(self.writes)
            self.reconcile(controller, name)
            if len(self.writes) == before:
                return number
        raise AssertionError(
            f"{name} does not settle in {limit} passes: {[write.reason for write in self.writes[-5:]]}"
        )

    def carry_out(self, decision: Decision) -> None:
        for write in written(decision):
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
        word = _word_of(write.obj)
        before = self._objects.get(word)
        mark = (word, write.manager)
        last = self._applied.get(mark, {})
        self._applied[mark] = write.obj
        after = _merged(_without(before or {}, last, write.obj), write.obj)
        if after == before:
            return False
        return self.put(after) is not None

    def _patch(self, write: Patch) -> bool:
        word = _word(write.ref.kind.group, write.ref.kind.kind, write.ref.namespace, write.ref.name)
        before = self._objects[word]
        assert write.resource_version in ("", before["metadata"]["resourceVersion"]), f"stale patch: {write.reason}"
        after = apply_merge_patch(before, write.patch)
        if after == before:
            return False
        if after["metadata"].get("deletionTimestamp") and not after["metadata"].get("finalizers"):
            del self._objects[word]
        else:
            self.put(after)
        return True

    def _delete(self, write: Delete) -> bool:
        word = _word(write.ref.kind.group, write.ref.kind.kind, write.ref.namespace, write.ref.name)
        before = self._objects.get(word)
        if before is None or before["metadata"]["uid"] != write.uid or before["metadata"].get("deletionTimestamp"):
            return False
        if before["metadata"].get("finalizers"):
            self.put(apply_merge_patch(before, {"metadata": {"deletionTimestamp": stamp(self.now)}}))
        else:
            del self._objects[word]
        return True

    # --- what users and the other controllers do ----------------------------------------------------------------

    def put(self, obj: Object) -> Object:
        word = _word_of(obj)
        before = self._objects.get(word)
        self._revision += 1
        meta = {
            "uid": f"{obj['kind']}-{obj['metadata']['name']}-{self._revision}",
            "creationTimestamp": stamp(self.now),
            "generation": 1,
            **obj["metadata"],
            "resourceVersion": str(self._revision),
        }
        if before is not None and before.get("spec") != obj.get("spec"):
            meta["generation"] += 1
        self._objects[word] = {**obj, "metadata": meta}
        return self._objects[word]

    def change(self, obj: Object, patch: Object) -> Object:
        return self.put(apply_merge_patch(self._objects[_word_of(obj)], patch))

    def remove(self, obj: Object) -> None:
        del self._objects[_word_of(obj)]

    def says(self, machine: Object, *conditions: Object, **status: Any) -> Object:
        before = machine.get("status") or {}
        known = merged(before.get("conditions"), conditions, self.now)
        return self.change(machine, {"status": {**status, "conditions": known}})

    def make_available(self, machines: Iterable[Object]) -> None:
        for machine in machines:
            good = [{"type": type_, "status": "True", "reason": type_, "message": ""} for type_ in _GOOD]
            self.says(
                machine,
                *good,
                nodeRef={"name": machine["metadata"]["name"]},
                initialization={"infrastructureProvisioned": True},
            )

    def finish_deletions(self) -> None:
        for machine in self.all(MACHINE):
            if machine["metadata"].get("deletionTimestamp"):
                self.remove(machine)

    def pass_time(self, **delta: float) -> None:
        self.now += timedelta(**delta)


_GOOD = ("Ready", "Available", "UpToDate", "NodeReady", "NodeHealthy", "BootstrapConfigReady", "InfrastructureReady")


def written(decision: Decision) -> Iterator[Write]:
    for step in decision.writes:
        if isinstance(step, Parallel):
            yield from step.writes
        else:
            yield step


def stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def condition_of(obj: Object, type_: str) -> Object:
    return next(each for each in obj["status"]["conditions"] if each["type"] == type_)


def _word_of(obj: Object) -> Word:
    group = obj["apiVersion"].rpartition("/")[0]
    return _word(group, obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"])


def _word(group: str, kind: str, namespace: str, name: str) -> Word:
    return f"{group}/{kind}", namespace, name


def _merged(before: Any, after: Any) -> Any:
    if isinstance(before, dict) and isinstance(after, dict):
        return {**before, **{name: _merged(before.get(name), value) for name, value in after.items()}}
    return after


def _without(live: Any, last: Any, now: Any) -> Any:
    """Take away what the manager said last time and no longer says."""
    if not isinstance(live, dict) or not isinstance(last, dict):
        return live
    said = now if isinstance(now, dict) else {}
    return {
        name: _without(value, last.get(name), said.get(name))
        for name, value in live.items()
        if name not in last or name in said
    }
