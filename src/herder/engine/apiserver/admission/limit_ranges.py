"""LimitRanger: apply default requests and limits of LimitRanges, and enforce their minimums, maximums and ratios."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from herder.engine.apiserver.admission.chain import CREATE, UPDATE, Attributes, denied_by_plugin, metadata
from herder.engine.apiserver.admission.objects import PODS, Objects
from herder.engine.apiserver.admission.quota_usage import CLAIMS, Usage, amounts_of, pod_total
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.meta.quantity import Quantity, decode

LIMIT_RANGES = GroupResource("", "limitranges")
ANNOTATION = "kubernetes.io/limit-ranger"
_CONTAINERS = (("containers", "container"), ("initContainers", "init container"))

_BoundCheck = Callable[[str, str, Quantity, Usage, Usage], str]  # type, name, bound, requests, limits


class LimitRanges:
    """The LimitRanger admission plugin."""

    name = "LimitRanger"
    operations = frozenset({CREATE, UPDATE})
    resources: frozenset[GroupResource] | None = frozenset({PODS, CLAIMS})
    subresources: frozenset[str] | None = frozenset({"", "resize"})

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def admit(self, attributes: Attributes) -> None:
        if attributes.resource.group_resource == PODS and attributes.obj is not None and _applies(attributes):
            for limit_range in self._objects.list(LIMIT_RANGES, attributes.namespace):
                _set_defaults(attributes.obj, limit_range)

    async def validate(self, attributes: Attributes) -> None:
        if attributes.obj is None or not _applies(attributes):
            return
        for limit_range in self._objects.list(LIMIT_RANGES, attributes.namespace):
            problems = sorted(_problems(attributes, limit_range))
            if problems:
                message = problems[0] if len(problems) == 1 else "[" + ", ".join(problems) + "]"
                raise denied_by_plugin(attributes, message)


def _applies(attributes: Attributes) -> bool:
    """Whether to check this write. A pod's resources change only on create and resize; deleted objects are ignored."""
    if metadata(attributes.old).get("deletionTimestamp"):
        return False
    if attributes.resource.group_resource == PODS and attributes.operation == UPDATE:
        return attributes.subresource == "resize"
    return not attributes.subresource


def _limits(limit_range: Object, kind: str) -> Iterator[Object]:
    for item in (limit_range.get("spec") or {}).get("limits") or ():
        if item.get("type") == kind:
            yield item


def _set_defaults(pod: Object, limit_range: Object) -> None:
    requests: Object = {}
    limits: Object = {}
    for item in _limits(limit_range, "Container"):
        requests |= item.get("defaultRequest") or {}
        limits |= item.get("default") or {}
    defaulted: list[str] = []
    for field, kind in _CONTAINERS:
        for container in (pod.get("spec") or {}).get(field) or ():
            for part, wanted, label in (("requests", requests, "request"), ("limits", limits, "limit")):
                missing = _fill(container, part, wanted)
                if missing:
                    defaulted.append(f"{', '.join(missing)} {label} for {kind} {container.get('name')}")
    if defaulted:
        annotations = dict(metadata(pod).get("annotations") or {})
        annotations[ANNOTATION] = "LimitRanger plugin set: " + "; ".join(defaulted)
        pod.setdefault("metadata", {})["annotations"] = annotations


def _fill(container: Object, part: str, wanted: Object) -> list[str]:
    own = (container.get("resources") or {}).get(part) or {}
    missing = sorted(name for name in wanted if name not in own)
    if missing:
        filled = own | {name: wanted[name] for name in missing}
        container["resources"] = (container.get("resources") or {}) | {part: filled}
    return missing


def _problems(attributes: Attributes, limit_range: Object) -> Iterator[str]:
    obj = attributes.object
    if attributes.resource.group_resource == CLAIMS:
        requests = amounts_of(obj.get("spec") or {}, "requests")
        for item in _limits(limit_range, "PersistentVolumeClaim"):
            yield from _check_bound(item, "min", _check_min, requests, {})
            yield from _check_bound(item, "max", _check_max_request, requests, {})
        return
    for item in _limits(limit_range, "Container"):
        for field, _ in _CONTAINERS:
            for container in (obj.get("spec") or {}).get(field) or ():
                yield from _check_all_bounds(item, amounts_of(container, "requests"), amounts_of(container, "limits"))
    for item in _limits(limit_range, "Pod"):
        yield from _check_all_bounds(item, pod_total(obj, "requests"), pod_total(obj, "limits"))


def _check_all_bounds(item: Object, requests: Usage, limits: Usage) -> Iterator[str]:
    yield from _check_bound(item, "min", _check_min, requests, limits)
    yield from _check_bound(item, "max", _check_max, requests, limits)
    yield from _check_bound(item, "maxLimitRequestRatio", _check_ratio, requests, limits)


def _check_bound(item: Object, bound: str, check: _BoundCheck, requests: Usage, limits: Usage) -> Iterator[str]:
    for name, amount in (item.get(bound) or {}).items():
        problem = check(str(item.get("type")), name, decode(amount), requests, limits)
        if problem:
            yield problem


def _check_min(kind: str, name: str, minimum: Quantity, requests: Usage, limits: Usage) -> str:
    message = f"minimum {name} usage per {kind} is {minimum}"
    if name not in requests:
        return f"{message}.  No request is specified"
    if requests[name] < minimum:
        return f"{message}, but request is {requests[name]}"
    if name in limits and limits[name] < minimum:
        return f"{message}, but limit is {limits[name]}"
    return ""


def _check_max(kind: str, name: str, maximum: Quantity, requests: Usage, limits: Usage) -> str:
    message = f"maximum {name} usage per {kind} is {maximum}"
    if name not in limits:
        return f"{message}.  No limit is specified"
    if maximum < limits[name]:
        return f"{message}, but limit is {limits[name]}"
    if name in requests and maximum < requests[name]:
        return f"{message}, but request is {requests[name]}"
    return ""


def _check_max_request(kind: str, name: str, maximum: Quantity, requests: Usage, _: Usage) -> str:
    message = f"maximum {name} usage per {kind} is {maximum}"
    if name not in requests:
        return f"{message}.  No request is specified"
    return f"{message}, but request is {requests[name]}" if maximum < requests[name] else ""


def _check_ratio(kind: str, name: str, maximum: Quantity, requests: Usage, limits: Usage) -> str:
    message = f"{name} max limit to request ratio per {kind} is {maximum}"
    if name not in requests or not requests[name].sign:
        return f"{message}, but no request is specified or request is 0"
    if name not in limits or not limits[name].sign:
        return f"{message}, but no limit is specified or limit is 0"
    ratio = limits[name].scaled(-3) / requests[name].scaled(-3)
    return f"{message}, but provided ratio is {ratio:f}" if ratio > maximum.as_float() else ""
