"""Strategies of Deployments, ReplicaSets, StatefulSets, DaemonSets and ReplicationControllers."""

from __future__ import annotations

from collections.abc import Iterable

from herder.engine.apiserver.builtin.strategies import checks
from herder.engine.apiserver.builtin.strategies.base import BuiltinStrategy
from herder.engine.apiserver.builtin.strategies.checks import Errors, not_negative, unchanged
from herder.engine.apiserver.builtin.strategies.warnings import pod_name, pod_warnings
from herder.engine.apiserver.builtin.strategies.workload.podspec import pod_spec, pod_template
from herder.engine.apiserver.registry.strategy import Context
from herder.engine.meta import names
from herder.engine.meta.errors import forbidden_field, invalid_value, not_supported, required
from herder.engine.meta.kinds import Object


def _labels(template: Object) -> dict[str, str] | None:
    return (template.get("metadata") or {}).get("labels")


def _runs_forever(template: Object, path: str, kind: str) -> Errors:
    spec = template.get("spec") or {}
    if spec.get("restartPolicy") != "Always":
        yield not_supported(f"{path}.spec.restartPolicy", spec.get("restartPolicy", ""), ["Always"])
    if spec.get("activeDeadlineSeconds") is not None:
        problem = f"activeDeadlineSeconds in {kind} is not Supported"
        yield forbidden_field(f"{path}.spec.activeDeadlineSeconds", problem)


def _template_warnings(obj: Object) -> list[str]:
    template = obj["spec"].get("template") or {}
    return list(pod_warnings(template.get("spec") or {}, "spec.template.spec"))


def _replica_template(spec: Object) -> Errors:
    template = spec.get("template") or {}
    yield from checks.selects(spec.get("selector"), _labels(template), "spec.template.metadata.labels")
    yield from pod_template(template, "spec.template")
    yield from _runs_forever(template, "spec.template", "ReplicaSet")


class DeploymentStrategy(BuiltinStrategy):
    def __init__(self) -> None:
        super().__init__(generations=True, status="apps.v1.DeploymentStatus")

    def problems(self, obj: Object, context: Context) -> Errors:
        spec = obj["spec"]
        yield from not_negative(spec.get("replicas"), "spec.replicas")
        yield from checks.selector(spec.get("selector"), "spec.selector", "deployment")
        yield from _replica_template(spec)
        yield from _deployment_strategy(spec.get("strategy") or {}, "spec.strategy")
        yield from not_negative(spec.get("minReadySeconds"), "spec.minReadySeconds")
        yield from not_negative(spec.get("revisionHistoryLimit"), "spec.revisionHistoryLimit")
        deadline = spec.get("progressDeadlineSeconds")
        if deadline is not None:
            yield from not_negative(deadline, "spec.progressDeadlineSeconds")
            if deadline <= spec.get("minReadySeconds", 0):
                yield invalid_value("spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds")

    def validate_update(self, obj: Object, old: Object, context: Context) -> Errors:
        yield from unchanged(obj["spec"].get("selector"), old["spec"].get("selector"), "spec.selector")

    def warnings(self, obj: Object, old: Object | None) -> Iterable[str]:
        return [*pod_name(obj), *_template_warnings(obj)] if old is None else _template_warnings(obj)


def _deployment_strategy(strategy: Object, path: str) -> Errors:
    kind, rolling = strategy.get("type"), strategy.get("rollingUpdate")
    if kind == "Recreate":
        if rolling is not None:
            problem = "may not be specified when strategy `type` is 'Recreate'"
            yield forbidden_field(f"{path}.rollingUpdate", problem)
    elif kind != "RollingUpdate":
        yield not_supported(path, checks.as_go(strategy, "Type", "RollingUpdate"), ["Recreate", "RollingUpdate"])
    elif rolling is not None:
        at = f"{path}.rollingUpdate"
        down, surge = rolling.get("maxUnavailable"), rolling.get("maxSurge")
        yield from checks.int_or_percent(down, f"{at}.maxUnavailable")
        yield from checks.int_or_percent(surge, f"{at}.maxSurge")
        if checks.amount(down) == 0 and checks.amount(surge) == 0:
            yield invalid_value(f"{at}.maxUnavailable", down, "may not be 0 when `maxSurge` is 0")
        yield from checks.not_over_hundred_percent(down, f"{at}.maxUnavailable")


class ReplicaSetStrategy(BuiltinStrategy):
    def __init__(self) -> None:
        super().__init__(generations=True, status="apps.v1.ReplicaSetStatus")

    def problems(self, obj: Object, context: Context) -> Errors:
        spec = obj["spec"]
        yield from not_negative(spec.get("replicas"), "spec.replicas")
        yield from not_negative(spec.get("minReadySeconds"), "spec.minReadySeconds")
        yield from checks.selector(spec.get("selector"), "spec.selector", "deployment")
        yield from _replica_template(spec)

    def validate_update(self, obj: Object, old: Object, context: Context) -> Errors:
        yield from unchanged(obj["spec"].get("selector"), old["spec"].get("selector"), "spec.selector")

    def fields(self, obj: Object) -> dict[str, str]:
        return {"status.replicas": str(obj.get("status", {}).get("replicas", 0))}

    def warnings(self, obj: Object, old: Object | None) -> Iterable[str]:
        return [*pod_name(obj), *_template_warnings(obj)] if old is None else _template_warnings(obj)


class DaemonSetStrategy(BuiltinStrategy):
    def __init__(self) -> None:
        super().__init__(generations=True, status="apps.v1.DaemonSetStatus")

    def prepare_create(self, obj: Object, context: Context) -> None:
        super().prepare_create(obj, context)
        _note_template_generation(obj, 1)

    def prepare_update(self, obj: Object, old: Object, context: Context) -> None:
        super().prepare_update(obj, old, context)
        if not context.subresource:
            changed = obj["spec"].get("template") != old["spec"].get("template")
            _note_template_generation(obj, _template_generation(old) + changed)

    def problems(self, obj: Object, context: Context) -> Errors:
        spec, template = obj["spec"], obj["spec"].get("template") or {}
        yield from checks.selector(spec.get("selector"), "spec.selector")
        yield from checks.selects(spec.get("selector"), _labels(template), "spec.template.metadata.labels")
        if spec.get("selector") is not None and not any(spec["selector"].values()):
            yield invalid_value("spec.selector", spec["selector"], "empty selector is invalid for daemonset")
        yield from pod_template(template, "spec.template")
        yield from _runs_forever(template, "spec.template", "DaemonSet")
        yield from not_negative(spec.get("minReadySeconds"), "spec.minReadySeconds")
        yield from _daemon_strategy(spec.get("updateStrategy") or {}, "spec.updateStrategy")
        yield from not_negative(spec.get("revisionHistoryLimit"), "spec.revisionHistoryLimit")

    def validate_update(self, obj: Object, old: Object, context: Context) -> Errors:
        yield from unchanged(obj["spec"].get("selector"), old["spec"].get("selector"), "spec.selector")

    def warnings(self, obj: Object, old: Object | None) -> Iterable[str]:
        return _template_warnings(obj)


_TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"


def _template_generation(obj: Object) -> int:
    message = (obj["metadata"].get("annotations") or {}).get(_TEMPLATE_GENERATION, "")
    return int(message) if message.isdigit() else 0


def _note_template_generation(obj: Object, generation: int) -> None:
    obj["metadata"].setdefault("annotations", {})[_TEMPLATE_GENERATION] = str(generation)


def _daemon_strategy(strategy: Object, path: str) -> Errors:
    kind, rolling = strategy.get("type"), strategy.get("rollingUpdate")
    if kind == "OnDelete":
        return
    if kind != "RollingUpdate":
        yield not_supported(path, checks.as_go(strategy, "Type", "RollingUpdate"), ["RollingUpdate", "OnDelete"])
        return
    at = f"{path}.rollingUpdate"
    if rolling is None:
        yield required(at)
        return
    down, surge = rolling.get("maxUnavailable"), rolling.get("maxSurge")
    for key, value in (("maxUnavailable", down), ("maxSurge", surge)):
        yield from checks.int_or_percent(value, f"{at}.{key}")
        yield from checks.not_over_hundred_percent(value, f"{at}.{key}")
    if checks.amount(down) and checks.amount(surge):
        yield invalid_value(f"{at}.maxSurge", surge, "may not be set when maxUnavailable is non-zero")
    elif not checks.amount(down) and not checks.amount(surge):
        yield required(f"{at}.maxUnavailable", "cannot be 0 when maxSurge is 0")


_STATEFUL_CHANGEABLE = frozenset({
    "replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy", "minReadySeconds",
})  # fmt: skip
_STATEFUL_FROZEN = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
    "'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
)


class StatefulSetStrategy(BuiltinStrategy):
    name_check = staticmethod(checks.label_name)

    def __init__(self) -> None:
        super().__init__(generations=True, status="apps.v1.StatefulSetStatus")

    def problems(self, obj: Object, context: Context) -> Errors:
        spec, template = obj["spec"], obj["spec"].get("template") or {}
        policy = spec.get("podManagementPolicy")
        if policy not in {"OrderedReady", "Parallel"}:
            yield invalid_value("spec.podManagementPolicy", policy, "must be 'OrderedReady' or 'Parallel'")
        yield from _stateful_strategy(spec.get("updateStrategy") or {}, "spec.updateStrategy")
        retention = spec.get("persistentVolumeClaimRetentionPolicy") or {}
        for key in ("whenDeleted", "whenScaled"):
            if retention.get(key) not in {"Retain", "Delete"}:
                at = f"spec.persistentVolumeClaimRetentionPolicy.{key}"
                yield not_supported(at, retention.get(key, ""), ["Retain", "Delete"])
        yield from not_negative(spec.get("replicas"), "spec.replicas")
        yield from not_negative(spec.get("minReadySeconds"), "spec.minReadySeconds")
        yield from not_negative((spec.get("ordinals") or {}).get("start"), "spec.ordinals.start")
        if spec.get("serviceName"):
            yield from checks.checked(spec["serviceName"], "spec.serviceName", names.dns1123_label)
        yield from checks.selector(spec.get("selector"), "spec.selector", "statefulset")
        yield from self._template(spec, template)

    def _template(self, spec: Object, template: Object) -> Errors:
        path = "spec.template"
        yield from checks.selects(spec.get("selector"), _labels(template), f"{path}.metadata.labels")
        yield from checks.labels(_labels(template), f"{path}.labels")
        claims = [claim.get("metadata", {}).get("name", "") for claim in spec.get("volumeClaimTemplates") or ()]
        own = {
            key: value for key, value in (template.get("spec") or {}).items() if key not in {"subdomain", "hostname"}
        }
        yield from pod_spec(own, f"{path}.spec", extra_volumes=claims)
        yield from _runs_forever(template, path, "StatefulSet")

    def validate_update(self, obj: Object, old: Object, context: Context) -> Errors:
        if not context.subresource and _fixed(obj["spec"]) != _fixed(old["spec"]):
            yield forbidden_field("spec", _STATEFUL_FROZEN)

    def warnings(self, obj: Object, old: Object | None) -> Iterable[str]:
        return _template_warnings(obj)


def _fixed(spec: Object) -> Object:
    return {key: value for key, value in spec.items() if key not in _STATEFUL_CHANGEABLE and value}


def _stateful_strategy(strategy: Object, path: str) -> Errors:
    kind, rolling = strategy.get("type"), strategy.get("rollingUpdate")
    if kind == "OnDelete":
        if rolling is not None:
            at = f"{path}.rollingUpdate"
            yield invalid_value(at, rolling, "only allowed for updateStrategy 'RollingUpdate'")
    elif kind != "RollingUpdate":
        shown = checks.as_go(strategy, "Type", "RollingUpdate")
        yield invalid_value(path, shown, "must be 'RollingUpdate' or 'OnDelete'")
    elif rolling is not None:
        yield from not_negative(rolling.get("partition"), f"{path}.rollingUpdate.partition")


class ReplicationControllerStrategy(BuiltinStrategy):
    default_propagation = "Orphan"

    def __init__(self) -> None:
        super().__init__(generations=True, status="core.v1.ReplicationControllerStatus")

    def problems(self, obj: Object, context: Context) -> Errors:
        spec, template = obj["spec"], obj["spec"].get("template")
        yield from not_negative(spec.get("minReadySeconds"), "spec.minReadySeconds")
        selector = spec.get("selector") or {}
        if not selector:
            yield required("spec.selector")
        yield from not_negative(spec.get("replicas"), "spec.replicas")
        if template is None:
            yield required("spec.template")
            return
        labels = _labels(template) or {}
        if any(labels.get(key) != value for key, value in selector.items()):
            problem = "`selector` does not match template `labels`"
            yield invalid_value("spec.template.metadata.labels", labels, problem)
        yield from pod_template(template, "spec.template")
        yield from _runs_forever(template, "spec.template", "ReplicationController")

    def fields(self, obj: Object) -> dict[str, str]:
        return {"status.replicas": str(obj.get("status", {}).get("replicas", 0))}

    def warnings(self, obj: Object, old: Object | None) -> Iterable[str]:
        return [*pod_name(obj), *_template_warnings(obj)] if old is None else _template_warnings(obj)


class PodTemplateStrategy(BuiltinStrategy):
    def __init__(self) -> None:
        super().__init__(generations=True)

    def problems(self, obj: Object, context: Context) -> Errors:
        yield from pod_template(obj.get("template") or {}, "template")


class ControllerRevisionStrategy(BuiltinStrategy):
    def problems(self, obj: Object, context: Context) -> Errors:
        if not isinstance(obj.get("data"), dict):
            yield required("data", "data must be a valid JSON object")
        yield from not_negative(obj.get("revision"), "revision")

    def validate_update(self, obj: Object, old: Object, context: Context) -> Errors:
        yield from unchanged(obj.get("data"), old.get("data"), "data")
