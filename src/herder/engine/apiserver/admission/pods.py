"""Priority and DefaultTolerationSeconds: priority and default tolerations of pods."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from herder.engine.apiserver.admission.chain import CREATE, UPDATE, Attributes, denied_by_plugin, metadata
from herder.engine.apiserver.admission.objects import PODS, PRIORITY_CLASSES, Objects
from herder.engine.apiserver.auth.system_objects import new_metadata, object_encoder
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.store import Key, Put, Store

_PREEMPTS = "PreemptLowerPriority"
_SYSTEM_CLASSES = (
    ("system-node-critical", 2000001000, "pods that must not be moved from their current node"),
    ("system-cluster-critical", 2000000000, "pods that must run in the cluster, but can be moved to another node"),
)


class Priority:
    """The Priority admission plugin: resolves priorityClassName."""

    name = "Priority"
    operations = frozenset({CREATE, UPDATE})
    resources: frozenset[GroupResource] | None = frozenset({PODS, PRIORITY_CLASSES})
    subresources: frozenset[str] | None = frozenset({""})

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def admit(self, attributes: Attributes) -> None:
        if attributes.resource.group_resource != PODS or attributes.obj is None:
            return
        spec = attributes.obj.setdefault("spec", {})
        if attributes.operation == UPDATE:
            old = (attributes.old or {}).get("spec") or {}
            for field in ("priority", "preemptionPolicy"):
                if spec.get(field) is None and old.get(field) is not None:
                    spec[field] = old[field]
            return
        name, value, policy = self._resolve_class(attributes, spec.get("priorityClassName") or "")
        given, given_policy = spec.get("priority"), spec.get("preemptionPolicy")
        if given is not None and given != value:
            raise denied_by_plugin(
                attributes,
                f"the integer value of priority ({given}) must not be provided in pod spec; "
                f"priority admission controller computed {value} from the given PriorityClass name",
            )
        if policy and given_policy is not None and given_policy != policy:
            raise denied_by_plugin(
                attributes,
                f"the string value of PreemptionPolicy ({given_policy}) must not be provided in pod spec; "
                f"priority admission controller computed {policy} from the given PriorityClass name",
            )
        if name:
            spec["priorityClassName"] = name
        spec["priority"] = value
        if policy:
            spec["preemptionPolicy"] = policy

    async def validate(self, attributes: Attributes) -> None:
        """Reject a second PriorityClass with globalDefault."""
        priority_class = attributes.obj
        if attributes.resource.group_resource != PRIORITY_CLASSES or priority_class is None:
            return
        if not priority_class.get("globalDefault"):
            return
        default = self._default_class()
        if default is None:
            return
        current_default = metadata(default).get("name")
        if attributes.operation == CREATE or current_default != metadata(priority_class).get("name"):
            raise denied_by_plugin(
                attributes, f"PriorityClass {current_default} is already marked as default. Only one default can exist"
            )

    def _resolve_class(self, attributes: Attributes, name: str) -> tuple[str, int, str]:
        if name:
            found = self._objects.get(PRIORITY_CLASSES, "", name)
            if found is None:
                raise denied_by_plugin(attributes, f"no PriorityClass with name {name} was found")
            return name, found.get("value") or 0, found.get("preemptionPolicy") or ""
        default = self._default_class()
        if default is None:
            return "", 0, _PREEMPTS
        return metadata(default)["name"], default.get("value") or 0, default.get("preemptionPolicy") or ""

    def _default_class(self) -> Object | None:
        defaults = [item for item in self._objects.list(PRIORITY_CLASSES) if item.get("globalDefault")]
        return min(defaults, key=lambda item: item.get("value") or 0, default=None)


class DefaultTolerationSeconds:
    """Tolerate not-ready and unreachable nodes for five minutes, unless the pod has its own toleration."""

    name = "DefaultTolerationSeconds"
    operations = frozenset({CREATE, UPDATE})
    resources: frozenset[GroupResource] | None = frozenset({PODS})
    subresources: frozenset[str] | None = frozenset({""})

    async def admit(self, attributes: Attributes) -> None:
        if attributes.obj is None:
            return
        spec = attributes.obj.setdefault("spec", {})
        tolerations = list(spec.get("tolerations") or ())
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
            if not any(_tolerates(toleration, key) for toleration in spec.get("tolerations") or ()):
                tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
        spec["tolerations"] = tolerations


def _tolerates(toleration: Object, key: str) -> bool:
    return (toleration.get("key") or key) == key and (toleration.get("effect") or "NoExecute") == "NoExecute"


async def write_system_priority_classes(store: Store, *, now: datetime, entropy: Callable[[int], bytes]) -> None:
    """Create the PriorityClasses system-node-critical and system-cluster-critical."""
    changes = []
    for name, value, purpose in _SYSTEM_CLASSES:
        key = Key(str(PRIORITY_CLASSES), "", name)
        if store.latest(key) is None:
            obj = {
                "kind": "PriorityClass",
                "apiVersion": "scheduling.k8s.io/v1",
                "metadata": new_metadata({"name": name, "generation": 1}, now=now, entropy=entropy),
                "value": value,
                "description": f"For {purpose}.",
                "preemptionPolicy": _PREEMPTS,
            }
            changes.append(Put(key, object_encoder(obj), 0))
    if changes:
        await store.write(*changes)
