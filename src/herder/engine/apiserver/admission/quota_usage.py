"""Quota usage of objects, and the scopes of quotas. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from herder.engine.apiserver.admission.chain import metadata
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.meta.quantity import Quantity, decode

Usage = dict[str, Quantity]

PODS, SERVICES = GroupResource("", "pods"), GroupResource("", "services")
CLAIMS = GroupResource("", "persistentvolumeclaims")
ZERO, ONE = decode(0), decode(1)

# Limited by their plain name as well as by count/<name>.
PLAIN_COUNTS = frozenset({
    "pods", "services", "replicationcontrollers", "resourcequotas", "secrets", "configmaps", "persistentvolumeclaims",
})  # fmt: skip
_COMPUTE = ("cpu", "memory", "ephemeral-storage")
_STORAGE_CLASS = ".storageclass.storage.k8s.io/"
_MUST_SPECIFY = frozenset({"cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"})


def usage_of(resource: GroupResource, obj: Object, now: datetime) -> Usage:
    """Return everything that one object uses, by the names that quotas may limit."""
    usage: Usage = {f"count/{resource}": ONE}
    if resource == PODS:
        if not _has_terminated(obj, now):
            usage |= _pod_usage(obj)
        return usage
    if not resource.group and resource.resource in PLAIN_COUNTS:
        usage[resource.resource] = ONE
    if resource == SERVICES:
        usage |= _service_usage(obj)
    elif resource == CLAIMS:
        usage |= _claim_usage(obj)
    return usage


def counted_resource(name: str) -> str:
    """Return the stored resource whose objects a quota's key counts."""
    if name.startswith("count/"):
        return name.removeprefix("count/")
    if name.startswith("services."):
        return "services"
    if name == "requests.storage" or _STORAGE_CLASS in name:
        return "persistentvolumeclaims"
    return name if name in PLAIN_COUNTS else "pods"


def add_usage(left: Usage, right: Mapping[str, Quantity]) -> Usage:
    """Return the sum of two usages."""
    total = dict(left)
    for name, amount in right.items():
        total[name] = total[name].add(amount) if name in total else amount
    return total


def increase(new: Usage, old: Usage) -> Usage:
    """Return what `new` uses in addition to `old`; only positive amounts."""
    grown = {name: amount.sub(old[name]) if name in old else amount for name, amount in new.items()}
    return {name: amount for name, amount in grown.items() if amount.sign > 0}


def _has_terminated(pod: Object, now: datetime) -> bool:
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return True
    own = metadata(pod)
    deleted, grace = own.get("deletionTimestamp"), own.get("deletionGracePeriodSeconds")
    if not deleted or grace is None:
        return False
    return now > datetime.fromisoformat(deleted) + timedelta(seconds=grace)


def _pod_usage(pod: Object) -> Usage:
    requests, limits = _with_overhead(pod, "requests"), _with_overhead(pod, "limits")
    usage: Usage = {"pods": ONE}
    for name, amount in requests.items():
        if name in _COMPUTE:
            usage[name] = amount
        if name in _COMPUTE or "/" in name:
            usage[f"requests.{name}"] = amount
        elif name.startswith("hugepages-"):
            usage[name] = usage[f"requests.{name}"] = amount
    for name, amount in limits.items():
        if name in _COMPUTE:
            usage[f"limits.{name}"] = amount
    return usage


def pod_total(pod: Object, kind: str) -> Usage:
    """Return the highest usage of a pod at any time: all containers together, or the init containers before them."""
    spec = pod.get("spec") or {}
    total: Usage = {}
    for container in spec.get("containers") or ():
        total = add_usage(total, amounts_of(container, kind))
    sidecars: Usage = {}
    highest: Usage = {}
    for container in spec.get("initContainers") or ():
        own = amounts_of(container, kind)
        if container.get("restartPolicy") == "Always":
            total, sidecars = add_usage(total, own), add_usage(sidecars, own)
            own = sidecars
        else:
            own = add_usage(sidecars, own)
        highest = _maximum(highest, own)
    total = _maximum(total, highest)
    return total | amounts_of(spec, kind)  # pod-level resources override those of containers


def _with_overhead(pod: Object, kind: str) -> Usage:
    total = pod_total(pod, kind)
    overhead = {name: decode(amount) for name, amount in ((pod.get("spec") or {}).get("overhead") or {}).items()}
    if kind == "requests":
        return add_usage(total, overhead)
    return {name: amount.add(overhead[name]) if name in overhead else amount for name, amount in total.items()}


def amounts_of(holder: Object, kind: str) -> Usage:
    """Return the requests or limits of a container or a pod spec."""
    found: Mapping[str, Any] = (holder.get("resources") or {}).get(kind) or {}
    return {name: decode(amount) for name, amount in found.items()}


def _maximum(total: Usage, floor: Usage) -> Usage:
    raised = dict(total)
    for name, amount in floor.items():
        if name not in raised or raised[name] < amount:
            raised[name] = amount
    return raised


def _service_usage(service: Object) -> Usage:
    spec = service.get("spec") or {}
    kind, ports = spec.get("type"), spec.get("ports") or ()
    usage: Usage = {"services.nodeports": ZERO, "services.loadbalancers": ZERO}
    if kind == "NodePort":
        usage["services.nodeports"] = decode(len(ports))
    elif kind == "LoadBalancer":
        usage["services.loadbalancers"] = ONE
        if spec.get("allocateLoadBalancerNodePorts") is False:
            ports = [port for port in ports if port.get("nodePort")]
        usage["services.nodeports"] = decode(len(ports))
    return usage


def _claim_usage(claim: Object) -> Usage:
    spec = claim.get("spec") or {}
    storage = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    usage: Usage = {"requests.storage": decode(storage)} if storage is not None else {}
    name = spec.get("storageClassName") or (metadata(claim).get("annotations") or {}).get(
        "volume.beta.kubernetes.io/storage-class"
    )
    if name:
        usage[f"{name}{_STORAGE_CLASS}persistentvolumeclaims"] = ONE
        if storage is not None:
            usage[f"{name}{_STORAGE_CLASS}requests.storage"] = decode(storage)
    return usage


# --- scopes -----------------------------------------------------------------------------------------------------


def in_scope(quota: Object, resource: GroupResource, obj: Object) -> bool:
    """Whether a quota's scopes include the object. Only pods have scopes."""
    spec = quota.get("spec") or {}
    wanted = [{"scopeName": name, "operator": "Exists"} for name in spec.get("scopes") or ()]
    wanted += (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    if not wanted:
        return True
    return resource == PODS and all(_scope_matches(requirement, obj) for requirement in wanted)


def _scope_matches(requirement: Object, pod: Object) -> bool:
    name = requirement.get("scopeName")
    if name == "PriorityClass":
        return _priority_matches(requirement, (pod.get("spec") or {}).get("priorityClassName") or "")
    check = _SCOPES.get(str(name))
    return check is not None and check(pod)


def _priority_matches(requirement: Object, name: str) -> bool:
    match requirement.get("operator"):
        case "In":
            return name in (requirement.get("values") or ())
        case "NotIn":
            return name not in (requirement.get("values") or ())
        case "DoesNotExist":
            return not name
        case _:
            return bool(name)


def _has_deadline(pod: Object) -> bool:
    return (pod.get("spec") or {}).get("activeDeadlineSeconds") is not None


def _is_best_effort(pod: Object) -> bool:
    spec = pod.get("spec") or {}
    for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ()), spec]:
        for kind in ("requests", "limits"):
            if any(name in ("cpu", "memory") and amount.sign for name, amount in amounts_of(container, kind).items()):
                return False
    return True


def _has_cross_namespace_affinity(pod: Object) -> bool:
    affinity = (pod.get("spec") or {}).get("affinity") or {}
    return any(
        term.get("namespaces") or term.get("namespaceSelector") is not None
        for kind in ("podAffinity", "podAntiAffinity")
        for term in _affinity_terms(affinity.get(kind) or {})
    )


def _affinity_terms(affinity: Object) -> Iterator[Object]:
    yield from affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
    for weighted in affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ():
        yield weighted.get("podAffinityTerm") or {}


_SCOPES: Mapping[str, Callable[[Object], bool]] = {
    "Terminating": _has_deadline,
    "NotTerminating": lambda pod: not _has_deadline(pod),
    "BestEffort": _is_best_effort,
    "NotBestEffort": lambda pod: not _is_best_effort(pod),
    "CrossNamespacePodAffinity": _has_cross_namespace_affinity,
}


def unspecified(limited: Iterable[str], pod: Object) -> str:
    """Return an error for limited resources that some container does not specify; they could not be counted."""
    spec = pod.get("spec") or {}
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    pod_level = _specified(spec)
    unspecified_resources = []
    for name in sorted(_MUST_SPECIFY.intersection(limited)):
        missing = [str(item.get("name")) for item in containers if name not in _specified(item) | pod_level]
        if missing:
            unspecified_resources.append(f"{name} for: {','.join(sorted(missing))}")
    return f"must specify {'; '.join(unspecified_resources)}" if unspecified_resources else ""


def _specified(holder: Object) -> set[str]:
    requests, limits = amounts_of(holder, "requests"), amounts_of(holder, "limits")
    return {*requests, *(f"requests.{name}" for name in requests), *(f"limits.{name}" for name in limits)}
