"""Strategies of leases, priority and storage classes, disruption budgets, API services, quotas and service accounts."""

from __future__ import annotations

from herder.engine.apiserver.builtin.strategies import checks
from herder.engine.apiserver.builtin.strategies.base import BuiltinStrategy
from herder.engine.apiserver.builtin.strategies.checks import Errors, as_go, checked, not_negative, one_of, unchanged
from herder.engine.apiserver.registry.strategy import Context
from herder.engine.meta import names, quantity
from herder.engine.meta.errors import forbidden_field, invalid_value, not_supported, required
from herder.engine.meta.kinds import Object


class LeaseStrategy(BuiltinStrategy):
    def problems(self, obj: Object, context: Context) -> Errors:
        spec = obj.get("spec") or {}
        seconds, strategy = spec.get("leaseDurationSeconds"), spec.get("strategy")
        if seconds is not None and seconds <= 0:
            yield invalid_value("spec.leaseDurationSeconds", seconds, "must be greater than 0")
        yield from not_negative(spec.get("leaseTransitions"), "spec.leaseTransitions")
        if strategy and "/" not in strategy and strategy != "OldestEmulationVersion":
            yield not_supported("spec.strategy.strategy", strategy, ["OldestEmulationVersion"])
        if spec.get("preferredHolder") and not strategy:
            yield forbidden_field("spec.preferredHolder", "may only be specified if `strategy` is defined")


_HIGHEST_USER_PRIORITY = 1_000_000_000
_SYSTEM_CLASSES = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}


class PriorityClassStrategy(BuiltinStrategy):
    def __init__(self) -> None:
        super().__init__(generations=True)

    def problems(self, obj: Object, context: Context) -> Errors:
        name, value = obj["metadata"].get("name", ""), obj.get("value", 0)
        if name.startswith("system-"):
            if _SYSTEM_CLASSES.get(name) != value or obj.get("globalDefault"):
                reserved = "priority class names with 'system-' prefix are reserved for system use only. error: "
                yield forbidden_field("metadata.name", f"{reserved}{name} is not a known system priority class")
        elif value > _HIGHEST_USER_PRIORITY:
            highest = f"maximum allowed value of a user defined priority is {_HIGHEST_USER_PRIORITY}"
            yield forbidden_field("value", highest)
        policies = ("PreemptLowerPriority", "Never")
        yield from one_of(obj.get("preemptionPolicy"), "preemptionPolicy", policies)

    def validate_update(self, obj: Object, old: Object, context: Context) -> Errors:
        if obj.get("value", 0) != old.get("value", 0):
            yield forbidden_field("value", "may not be changed in an update.")
        yield from unchanged(obj.get("preemptionPolicy"), old.get("preemptionPolicy"), "preemptionPolicy")


class DisruptionBudgetStrategy(BuiltinStrategy):
    def __init__(self) -> None:
        super().__init__(generations=True, status="policy.v1.PodDisruptionBudgetStatus")

    def problems(self, obj: Object, context: Context) -> Errors:
        spec = obj.get("spec") or {}
        if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
            shown = as_go(spec, "MinAvailable", "Selector", "MaxUnavailable", "UnhealthyPodEvictionPolicy")
            yield invalid_value("spec", shown, "minAvailable and maxUnavailable cannot be both set")
        for key in ("minAvailable", "maxUnavailable"):
            if spec.get(key) is not None:
                yield from checks.int_or_percent(spec[key], f"spec.{key}")
                yield from checks.not_over_hundred_percent(spec[key], f"spec.{key}")
        yield from checks.selector(spec.get("selector"), "spec.selector")
        policy = spec.get("unhealthyPodEvictionPolicy")
        if policy is not None and policy not in {"AlwaysAllow", "IfHealthyBudget"}:
            yield not_supported("spec.unhealthyPodEvictionPolicy", policy, ["AlwaysAllow", "IfHealthyBudget"])


class StorageClassStrategy(BuiltinStrategy):
    def problems(self, obj: Object, context: Context) -> Errors:
        provisioner = obj.get("provisioner", "")
        if not provisioner:
            yield required("provisioner")
        else:
            yield from checked(provisioner.lower(), "provisioner", names.qualified_name)
        policy, mode = obj.get("reclaimPolicy"), obj.get("volumeBindingMode")
        if policy not in {"Delete", "Retain"}:
            yield not_supported("reclaimPolicy", policy, ["Delete", "Retain"])
        if mode not in {"Immediate", "WaitForFirstConsumer"}:
            yield not_supported("volumeBindingMode", mode, ["Immediate", "WaitForFirstConsumer"])

    def validate_update(self, obj: Object, old: Object, context: Context) -> Errors:
        for key in ("parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"):
            yield from unchanged(obj.get(key), old.get(key), key)


class ApiServiceStrategy(BuiltinStrategy):
    name_check = staticmethod(names.path_segment)

    def __init__(self) -> None:
        super().__init__(status="apiregistration.v1.APIServiceStatus")

    def problems(self, obj: Object, context: Context) -> Errors:
        spec, name = obj.get("spec") or {}, obj["metadata"].get("name", "")
        group, version = spec.get("group", ""), spec.get("version", "")
        if name != f"{version}.{group}":
            problem = f'must be `spec.version+"."+spec.group`: "{version}.{group}"'
            yield invalid_value("metadata.name", name, problem)
        if not group and version != "v1":
            yield required("spec.group", "only v1 may have an empty group and it better be legacy kube")
        if group:
            yield from checked(group, "spec.group", names.dns1123_subdomain)
        yield from checked(version, "spec.version", names.dns1035_label)
        for key, limit in (("groupPriorityMinimum", 20000), ("versionPriority", 1000)):
            if not 0 < spec.get(key, 0) <= limit:
                yield invalid_value(f"spec.{key}", spec.get(key, 0), f"must be positive and less than {limit}")
        yield from _api_service_backend(spec)


def _api_service_backend(spec: Object) -> Errors:
    service = spec.get("service")
    if service is None:
        if spec.get("insecureSkipTLSVerify"):
            problem = "local APIServices may not have insecureSkipTLSVerify"
            yield invalid_value("spec.insecureSkipTLSVerify", True, problem)
        return
    for key in ("namespace", "name"):
        if not service.get(key):
            yield required(f"spec.service.{key}")
    if not 1 <= service.get("port", 443) <= 65535:
        yield invalid_value("spec.service.port", service["port"], f"port is not valid: {checks.PORT_RANGE}")
    if spec.get("insecureSkipTLSVerify") and spec.get("caBundle"):
        yield invalid_value("spec.insecureSkipTLSVerify", True, "may not be true if caBundle is present")


class ResourceQuotaStrategy(BuiltinStrategy):
    def __init__(self) -> None:
        super().__init__(status="core.v1.ResourceQuotaStatus")

    def problems(self, obj: Object, context: Context) -> Errors:
        for name, value in ((obj.get("spec") or {}).get("hard") or {}).items():
            yield from checked(name, f"spec.hard[{name}]", names.qualified_name)
            if quantity.parse(value).sign < 0:
                yield invalid_value(f"spec.hard[{name}]", value, checks.NOT_NEGATIVE)


class LimitRangeStrategy(BuiltinStrategy):
    def problems(self, obj: Object, context: Context) -> Errors:
        for position, limit in enumerate((obj.get("spec") or {}).get("limits") or ()):
            at = f"spec.limits[{position}]"
            low, high = limit.get("min") or {}, limit.get("max") or {}
            for name in low.keys() & high.keys():
                if quantity.parse(low[name]).compare(quantity.parse(high[name])) > 0:
                    problem = f"min value {low[name]} is greater than max value {high[name]}"
                    yield invalid_value(f"{at}.min[{name}]", low[name], problem)


class AutoscalerStrategy(BuiltinStrategy):
    def __init__(self) -> None:
        super().__init__(status="autoscaling.v2.HorizontalPodAutoscalerStatus")

    def problems(self, obj: Object, context: Context) -> Errors:
        spec = obj.get("spec") or {}
        low, high = spec.get("minReplicas"), spec.get("maxReplicas", 0)
        if low is not None and low < 1:
            yield invalid_value("spec.minReplicas", low, "must be greater than or equal to 1")
        if high == 0:
            yield required("spec.maxReplicas", "must be set and greater than 0")
        elif high < 0:
            yield invalid_value("spec.maxReplicas", high, "must be greater than 0")
        if low is not None and high < low:
            problem = "must be greater than or equal to `minReplicas`"
            yield invalid_value("spec.maxReplicas", high, problem)
        target = spec.get("scaleTargetRef") or {}
        if not target.get("apiVersion"):
            yield invalid_value("spec.scaleTargetRef.apiVersion", "", "apiVersion must specify API group")
        for key in ("kind", "name"):
            if not target.get(key):
                yield required(f"spec.scaleTargetRef.{key}")


class ServiceAccountStrategy(BuiltinStrategy):
    """Only the name is validated."""
