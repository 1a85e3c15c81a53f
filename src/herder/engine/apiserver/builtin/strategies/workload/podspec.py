"""Validate pod specs, of pods and of templates."""

from __future__ import annotations

from collections.abc import Iterable

from herder.engine.apiserver.builtin.strategies import checks
from herder.engine.apiserver.builtin.strategies.checks import MAX_INT32, Errors, checked, one_of
from herder.engine.apiserver.builtin.strategies.workload.containers import containers, init_containers
from herder.engine.apiserver.builtin.strategies.workload.volumes import volumes
from herder.engine.meta import names
from herder.engine.meta.errors import duplicate, forbidden_field, invalid_value, not_supported, required
from herder.engine.meta.kinds import Object

RESTART_POLICIES = ("Always", "OnFailure", "Never")
_DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def pod_template(template: Object, path: str) -> Errors:
    metadata = template.get("metadata") or {}
    yield from checks.labels(metadata.get("labels"), f"{path}.labels")
    yield from checks.annotation_keys(metadata.get("annotations"), f"{path}.annotations")
    spec = template.get("spec") or {}
    yield from pod_spec(spec, f"{path}.spec")
    if spec.get("ephemeralContainers"):
        problem = "ephemeral containers not allowed in pod template"
        yield forbidden_field(f"{path}.spec.ephemeralContainers", problem)


def pod_spec(spec: Object, path: str, extra_volumes: Iterable[str] = ()) -> Errors:
    """Validate a pod spec. `extra_volumes` are volumes from elsewhere (a StatefulSet's claim templates)."""
    mountable, problems = volumes(spec.get("volumes") or (), f"{path}.volumes")
    yield from problems
    mountable.update(extra_volumes)
    regular = spec.get("containers")
    yield from containers(regular, f"{path}.containers", mountable)
    regular_names = [item.get("name", "") for item in regular or ()]
    yield from init_containers(spec.get("initContainers"), f"{path}.initContainers", mountable, regular_names)
    yield from one_of(spec.get("restartPolicy"), f"{path}.restartPolicy", RESTART_POLICIES)
    yield from one_of(spec.get("dnsPolicy"), f"{path}.dnsPolicy", _DNS_POLICIES)
    yield from checks.labels(spec.get("nodeSelector"), f"{path}.nodeSelector")
    yield from _scheduling(spec, path)
    yield from _names(spec, path)
    yield from _host_network(spec, path)
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= MAX_INT32:
        range_words = f"must be between 1 and {MAX_INT32}, inclusive"
        yield invalid_value(f"{path}.activeDeadlineSeconds", deadline, range_words)
    yield from checks.not_negative(spec.get("terminationGracePeriodSeconds"), f"{path}.terminationGracePeriodSeconds")
    yield from tolerations(spec.get("tolerations") or (), f"{path}.tolerations")
    for position, alias in enumerate(spec.get("hostAliases") or ()):
        yield from checks.ip_address(alias.get("ip", ""), f"{path}.hostAliases[{position}].ip")
        for index, name in enumerate(alias.get("hostnames") or ()):
            at = f"{path}.hostAliases[{position}].hostnames[{index}]"
            yield from checked(name, at, names.dns1123_subdomain)
    if spec.get("preemptionPolicy") is not None:
        choices = ("PreemptLowerPriority", "Never")
        yield from one_of(spec["preemptionPolicy"], f"{path}.preemptionPolicy", choices)


def _names(spec: Object, path: str) -> Errors:
    rules = (
        ("serviceAccountName", names.dns1123_subdomain),
        ("nodeName", names.dns1123_subdomain),
        ("hostname", names.dns1123_label),
        ("subdomain", names.dns1123_label),
        ("priorityClassName", names.dns1123_subdomain),
        ("runtimeClassName", names.dns1123_subdomain),
    )
    for key, check in rules:
        if spec.get(key):
            yield from checked(spec[key], f"{path}.{key}", check)


def _host_network(spec: Object, path: str) -> Errors:
    """Validate host ports of a pod with hostNetwork. Missing ones are defaulted when the pod is created."""
    if not spec.get("hostNetwork"):
        return
    problem = "must match `containerPort` when `hostNetwork` is true"
    for index, item in enumerate(spec.get("containers") or ()):
        for position, port in enumerate(item.get("ports") or ()):
            if port.get("hostPort", 0) not in {0, port.get("containerPort", 0)}:
                at = f"{path}.containers[{index}].ports[{position}].hostPort"
                yield invalid_value(at, port["hostPort"], problem)


def _scheduling(spec: Object, path: str) -> Errors:
    seen: set[str] = set()
    for position, gate in enumerate(spec.get("schedulingGates") or ()):
        at = f"{path}.schedulingGates[{position}]"
        yield from checked(gate.get("name", ""), at, names.qualified_name)
        if gate.get("name") in seen:
            yield duplicate(at, gate["name"])
        seen.add(gate.get("name", ""))
    for position, constraint in enumerate(spec.get("topologySpreadConstraints") or ()):
        at = f"{path}.topologySpreadConstraints[{position}]"
        if constraint.get("maxSkew", 0) <= 0:
            yield invalid_value(f"{at}.maxSkew", constraint.get("maxSkew", 0), "must be greater than zero")
        if not constraint.get("topologyKey"):
            yield required(f"{at}.topologyKey", "can not be empty")
        action = constraint.get("whenUnsatisfiable", "")
        if action not in {"DoNotSchedule", "ScheduleAnyway"}:
            yield not_supported(f"{at}.whenUnsatisfiable", action, ["DoNotSchedule", "ScheduleAnyway"])
        yield from checks.selector(constraint.get("labelSelector"), f"{at}.labelSelector")


def tolerations(items: Iterable[Object], path: str) -> Errors:
    for position, item in enumerate(items):
        at = f"{path}[{position}]"
        key, operator, value = item.get("key", ""), item.get("operator", ""), item.get("value", "")
        effect = item.get("effect", "")
        if key:
            yield from checked(key, f"{at}.key", names.qualified_name)
        elif operator != "Exists":
            problem = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            yield invalid_value(f"{at}.operator", operator, problem)
        if item.get("tolerationSeconds") is not None and effect != "NoExecute":
            yield invalid_value(f"{at}.effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
        if operator in {"Equal", ""}:
            problems = names.label_value(value)
            if problems:
                yield invalid_value(f"{at}.operator", value, ";".join(problems))
        elif operator == "Exists":
            if value:
                yield invalid_value(f"{at}.operator", value, "value must be empty when `operator` is 'Exists'")
        else:
            yield not_supported(f"{at}.operator", operator, ["Equal", "Exists"])
        if effect and effect not in _EFFECTS:
            yield not_supported(f"{at}.effect", effect, list(_EFFECTS))
