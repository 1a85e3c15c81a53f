"""Machine pools: what would be refused later, of the objects that are made from them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from herder.api.capi.admission.checks import int_or_percent
from herder.api.capi.admission.values import section, text, value
from herder.api.numbers import integer
from herder.api.rke.admission.config import of_format
from herder.api.rke.admission.places import PATH, RKE
from herder.api.rke.distributions import version_of
from herder.api.rke.names import LINUX
from herder.api.rke.roles import refusal
from herder.engine.meta import names
from herder.engine.meta.errors import FieldError, forbidden_field, invalid_value
from herder.engine.meta.kinds import Object

_PATH = f"{PATH}.machinePools"
_ROLES = ("etcdRole", "controlPlaneRole", "workerRole")
_MOST_MACHINES = 2**31 - 1
MACHINES_AT_MOST = 5000
"""Of one cluster: as many nodes as Kubernetes supports. Each machine is several objects and a Job of the manager."""
_RANGE = re.compile(r"\[([0-9]+)-([0-9]+)\]")


def listed(obj: Object) -> list[Object]:
    found = value(obj, *RKE, "machinePools")
    return [pool for pool in found if isinstance(pool, dict)] if isinstance(found, list) else []


def validate(obj: Object, old: Object | None) -> Iterator[FieldError]:
    before = {text(pool, "name"): pool for pool in listed(old or {})}
    version = version_of(text(obj, "spec", "kubernetesVersion"))
    distribution = version.facts.build if version else ""
    for position, pool in enumerate(listed(obj)):
        known = before.get(text(pool, "name"))
        if known != pool:
            yield from _pool(pool, known, f"{_PATH}[{position}]")
            yield from _roles(pool, distribution, f"{_PATH}[{position}]")
    wanted = _machines(obj)
    if wanted > MACHINES_AT_MOST and wanted > _machines(old or {}):
        yield invalid_value(
            _PATH,
            wanted,
            f"the pools of a cluster may have {MACHINES_AT_MOST} machines in all; spread them over several clusters",
        )


def _machines(obj: Object) -> int:
    """How many machines the pools may have together, grown as far as they may be scaled."""
    sizes = ((pool.get(part) for part in ("quantity", "autoscalingMaxSize")) for pool in listed(obj))
    return sum(max((size for size in each if isinstance(size, int)), default=1) for each in sizes)


def _pool(pool: Object, known: Object | None, path: str) -> Iterator[FieldError]:
    if known is None:
        for complaint in names.dns1123_label(pool["name"]):
            yield invalid_value(f"{path}.name", pool["name"], complaint)
    else:
        yield from _kept(pool, known, path)
    for field in ("labels", "machineDeploymentLabels"):
        yield from _labels(section(pool, field), f"{path}.{field}")
    yield from _taints(pool, f"{path}.taints")
    yield from _rolling(section(pool, "rollingUpdate"), f"{path}.rollingUpdate")
    yield from _numbers(pool, path)


def _kept(pool: Object, known: Object, path: str) -> Iterator[FieldError]:
    """Labels reach machines that are there, and by labels these are what they are: a worker would be told to serve. A
    pool without any role has no machines yet."""
    message = "field is immutable: add a pool with the other value, and take this one away"
    if any(known.get(role) for role in _ROLES):
        for role in _ROLES:
            if bool(pool.get(role)) != bool(known.get(role)):
                yield forbidden_field(f"{path}.{role}", message)
    if (pool.get("machineOS") or LINUX) != (known.get("machineOS") or LINUX):
        yield forbidden_field(f"{path}.machineOS", message)


def _roles(pool: Object, distribution: str, path: str) -> Iterator[FieldError]:
    etcd, control_plane = pool.get("etcdRole") is True, pool.get("controlPlaneRole") is True
    if why := refusal(distribution, etcd=etcd, control_plane=control_plane):
        yield invalid_value(path, text(pool, "name"), why)


def _labels(labels: Object, path: str) -> Iterator[FieldError]:
    for key, label in labels.items():
        for complaint in names.qualified_name(key):
            yield invalid_value(path, key, complaint)
        for complaint in names.label_value(label):
            yield invalid_value(f"{path}.{key}", label, complaint)


def _taints(pool: Object, path: str) -> Iterator[FieldError]:
    for position, taint in enumerate(pool.get("taints") or ()):
        for complaint in names.qualified_name(taint["key"]):
            yield invalid_value(f"{path}[{position}].key", taint["key"], complaint)
        for complaint in names.label_value(taint.get("value") or ""):
            yield invalid_value(f"{path}[{position}].value", taint["value"], complaint)
        yield from of_format(
            taint.get("timeAdded"), f"{path}[{position}].timeAdded", "a time such as 2026-01-01T00:00:00Z"
        )


def _rolling(rolling: Object, path: str) -> Iterator[FieldError]:
    unavailable, surge = rolling.get("maxUnavailable"), rolling.get("maxSurge")
    yield from int_or_percent(unavailable, f"{path}.maxUnavailable")
    yield from int_or_percent(surge, f"{path}.maxSurge")
    if unavailable == 0 and surge == 0:
        yield invalid_value(path, rolling, "maxUnavailable and maxSurge cannot both be 0")


def _numbers(pool: Object, path: str) -> Iterator[FieldError]:
    """Of machines: those that a MachineDeployment or a MachineHealthCheck could not be made with."""
    for size in ("autoscalingMinSize", "autoscalingMaxSize"):
        if (pool.get(size) or 0) < 0:
            yield invalid_value(f"{path}.{size}", pool[size], "must not be negative")
    most, within = text(pool, "maxUnhealthy"), text(pool, "unhealthyRange")
    if most.isdecimal() and not 0 <= integer(most, -1) <= _MOST_MACHINES:
        yield invalid_value(f"{path}.maxUnhealthy", most, f"must be at most {_MOST_MACHINES}")
    span = _RANGE.fullmatch(within)
    if span and not 0 <= integer(span[1], -1) <= integer(span[2], -1) <= _MOST_MACHINES:
        yield invalid_value(f"{path}.unhealthyRange", within, "must be [lowest-highest], such as [1-3]")
