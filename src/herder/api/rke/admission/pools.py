"""Validation of machine pools: rejects what the objects created from them would not accept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from herder.api.capi.admission.checks import int_or_percent
from herder.api.capi.admission.values import section, text, value
from herder.api.capi.names import AUTOSCALER_MAX, AUTOSCALER_MIN
from herder.api.numbers import parse_int64
from herder.api.rke.admission.config import of_format
from herder.api.rke.admission.paths import PATH, RKE
from herder.api.rke.distributions import version_of
from herder.api.rke.names import LINUX
from herder.api.rke.roles import unsupported_roles
from herder.engine.meta import names
from herder.engine.meta.errors import FieldError, forbidden_field, invalid_value, too_long
from herder.engine.meta.kinds import Object

_PATH = f"{PATH}.machinePools"
_ROLES = ("etcdRole", "controlPlaneRole", "workerRole")
_MAX_INT32 = 2**31 - 1
MAX_MACHINES = 5000
"""Maximum number of machines of a cluster: the Node limit of Kubernetes. Each machine is several objects and a Job."""
MAX_ANNOTATION = 96 << 10
_RANGE = re.compile(r"\[([0-9]+)-([0-9]+)\]")


def listed(obj: Object) -> list[Object]:
    found = value(obj, *RKE, "machinePools")
    return [pool for pool in found if isinstance(pool, dict)] if isinstance(found, list) else []


def validate(obj: Object, old: Object | None) -> Iterator[FieldError]:
    before = {text(pool, "name"): pool for pool in listed(old or {})}
    version = version_of(text(obj, "spec", "kubernetesVersion"))
    distribution = version.facts.build if version else ""
    limit = version.facts.max_servers if version else None
    for position, pool in enumerate(listed(obj)):
        known = before.get(text(pool, "name"))
        if known != pool:
            yield from _pool(pool, known, f"{_PATH}[{position}]")
            yield from _roles(pool, distribution, f"{_PATH}[{position}]")
    wanted = _machines(obj)
    if wanted > MAX_MACHINES and wanted > _machines(old or {}):
        yield invalid_value(
            _PATH,
            wanted,
            f"a cluster may have at most {MAX_MACHINES} machines; use several clusters",
        )
    servers = _servers(obj)
    if version is not None and limit is not None and servers > limit and servers > _servers(old or {}):
        yield invalid_value(
            _PATH,
            servers,
            f"the {version.facts.name} distribution supports {limit} server; keep one machine with etcdRole and "
            "controlPlaneRole",
        )


def _machines(obj: Object) -> int:
    """How many machines the pools may have together, grown as far as they may be scaled."""
    return sum(map(_max_size, listed(obj)))


def _servers(obj: Object) -> int:
    pools = (pool for pool in listed(obj) if pool.get("etcdRole") is True or pool.get("controlPlaneRole") is True)
    return sum(map(_max_size, pools))


def _max_size(pool: Object) -> int:
    return max((size for size in _sizes(pool) if isinstance(size, int)), default=1)


def _sizes(pool: Object) -> Iterator[Any]:
    """A MachineDeployment without replicas gets the lowest size in its annotations, which users may set themselves."""
    yield from (pool.get(part) for part in ("quantity", "autoscalingMaxSize"))
    annotations = section(pool, "machineDeploymentAnnotations")
    yield from (
        parse_int64(text(annotations, name), 1) for name in (AUTOSCALER_MIN, AUTOSCALER_MAX) if name in annotations
    )


def _pool(pool: Object, known: Object | None, path: str) -> Iterator[FieldError]:
    if known is None:
        for complaint in names.dns1123_label(pool["name"]):
            yield invalid_value(f"{path}.name", pool["name"], complaint)
    else:
        yield from _immutable_fields(pool, known, path)
    yield from core_reference(section(pool, "machineConfigRef"), f"{path}.machineConfigRef")
    for field in ("labels", "machineDeploymentLabels"):
        yield from _labels(section(pool, field), f"{path}.{field}")
    yield from _annotations(section(pool, "machineDeploymentAnnotations"), f"{path}.machineDeploymentAnnotations")
    yield from _taints(pool, f"{path}.taints")
    yield from _sizes_of_annotations(pool, path)
    yield from _rolling(section(pool, "rollingUpdate"), f"{path}.rollingUpdate")
    yield from _numbers(pool, path)


def core_reference(reference: Object, path: str) -> Iterator[FieldError]:
    """Kinds of the core group are built in; none of them is a machine config or an infrastructure."""
    version = text(reference, "apiVersion")
    if version and "/" not in version:
        yield invalid_value(f"{path}.apiVersion", version, "must be group/version")


def _immutable_fields(pool: Object, known: Object, path: str) -> Iterator[FieldError]:
    """Roles and OS are immutable.

    Role labels are propagated to existing machines: a worker would become a server. A pool without roles has no
    machines yet.
    """
    message = "field is immutable: add a pool with the new value and remove this one"
    if any(known.get(role) for role in _ROLES):
        for role in _ROLES:
            if bool(pool.get(role)) != bool(known.get(role)):
                yield forbidden_field(f"{path}.{role}", message)
    if (pool.get("machineOS") or LINUX) != (known.get("machineOS") or LINUX):
        yield forbidden_field(f"{path}.machineOS", message)


def _roles(pool: Object, distribution: str, path: str) -> Iterator[FieldError]:
    etcd, control_plane = pool.get("etcdRole") is True, pool.get("controlPlaneRole") is True
    if why := unsupported_roles(distribution, etcd=etcd, control_plane=control_plane):
        yield invalid_value(path, text(pool, "name"), why)


def _labels(labels: Object, path: str) -> Iterator[FieldError]:
    for key, label in labels.items():
        for complaint in names.qualified_name(key):
            yield invalid_value(path, key, complaint)
        for complaint in names.label_value(label):
            yield invalid_value(f"{path}.{key}", label, complaint)


def _annotations(annotations: Object, path: str) -> Iterator[FieldError]:
    for key in annotations:
        for complaint in names.qualified_name(key.lower()):
            yield invalid_value(path, key, complaint)


def _sizes_of_annotations(pool: Object, path: str) -> Iterator[FieldError]:
    """Labels and taints become annotations of Machines, which are limited to 256 KiB as those of MachineDeployments."""
    for field in ("labels", "taints", "machineDeploymentAnnotations"):
        if len(msgspec.json.encode(pool.get(field) or {})) > MAX_ANNOTATION:
            yield too_long(f"{path}.{field}", MAX_ANNOTATION)


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
    """Validate the sizes that a MachineDeployment or MachineHealthCheck would not accept."""
    for size in ("autoscalingMinSize", "autoscalingMaxSize"):
        if (pool.get(size) or 0) < 0:
            yield invalid_value(f"{path}.{size}", pool[size], "must not be negative")
    maximum, unhealthy_range = text(pool, "maxUnhealthy"), text(pool, "unhealthyRange")
    if maximum.isdecimal() and not 0 <= parse_int64(maximum, -1) <= _MAX_INT32:
        yield invalid_value(f"{path}.maxUnhealthy", maximum, f"must be at most {_MAX_INT32}")
    range_ = _RANGE.fullmatch(unhealthy_range)
    if range_ and not 0 <= parse_int64(range_[1], -1) <= parse_int64(range_[2], -1) <= _MAX_INT32:
        yield invalid_value(f"{path}.unhealthyRange", unhealthy_range, "must be [lowest-highest], such as [1-3]")
