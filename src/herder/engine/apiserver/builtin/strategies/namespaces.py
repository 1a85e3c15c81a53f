"""Strategy of namespaces: phase Active on create, and spec.finalizers until the content is deleted."""

from __future__ import annotations

import copy

from herder.engine.apiserver.builtin.strategies.base import BuiltinStrategy
from herder.engine.apiserver.builtin.strategies.checks import Errors, checked, label_name
from herder.engine.apiserver.registry.strategy import Context
from herder.engine.meta import names
from herder.engine.meta.errors import invalid_value
from herder.engine.meta.kinds import Object

FINALIZER = "kubernetes"


class NamespaceStrategy(BuiltinStrategy):
    name_check = staticmethod(label_name)

    def __init__(self) -> None:
        super().__init__(status="core.v1.NamespaceStatus")

    def prepare_create(self, obj: Object, context: Context) -> None:
        super().prepare_create(obj, context)
        # The label needs the name, which may have been generated after defaulting.
        obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"]["name"]
        finalizers = obj.setdefault("spec", {}).get("finalizers") or []
        if FINALIZER not in finalizers:
            obj["spec"]["finalizers"] = [*finalizers, FINALIZER]

    def prepare_update(self, obj: Object, old: Object, context: Context) -> None:
        super().prepare_update(obj, old, context)
        if context.subresource != "finalize":
            obj["spec"] = copy.deepcopy(old.get("spec", {}))

    def prepare_delete(self, obj: Object, context: Context) -> None:
        obj.setdefault("status", {})["phase"] = "Terminating"

    def removable(self, obj: Object) -> bool:
        return not obj.get("spec", {}).get("finalizers")

    def problems(self, obj: Object, context: Context) -> Errors:
        for finalizer in obj.get("spec", {}).get("finalizers") or ():
            yield from checked(finalizer, "spec.finalizers", names.qualified_name)
            if "/" not in finalizer and finalizer not in {FINALIZER, "orphan", "foregroundDeletion"}:
                problem = "name is neither a standard finalizer name nor is it fully qualified"
                yield invalid_value("spec.finalizers", finalizer, problem)

    def validate_update(self, obj: Object, old: Object, context: Context) -> Errors:
        if context.subresource == "status":
            phase, deleting = obj.get("status", {}).get("phase"), "deletionTimestamp" in obj["metadata"]
            if not deleting and phase != "Active":
                yield invalid_value("status.Phase", phase, "may only be 'Active' if `deletionTimestamp` is empty")
            if deleting and phase != "Terminating":
                yield invalid_value(
                    "status.Phase", phase, "may only be 'Terminating' if `deletionTimestamp` is not empty"
                )

    def fields(self, obj: Object) -> dict[str, str]:
        return {"status.phase": obj.get("status", {}).get("phase", ""), "name": obj["metadata"].get("name", "")}
