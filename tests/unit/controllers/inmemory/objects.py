"""Objects of the in-memory provider, and one reconcile of its controllers over them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import SECRET
from herder.api.capi.names import CLUSTER_NAME, SECRET_TYPE
from herder.api.inmemory import kinds
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import Decision
from tests.support.builders import (
    new_cluster,
    new_condition,
    new_machine,
    new_object,
    object_reference,
    owner_reference_to,
    reconcile,
)
from tests.support.views import NOW

NAMESPACE = "ns"
A_MINUTE_AGO = NOW - timedelta(seconds=60)
EXISTING = {"resourceVersion": "7", "generation": 1, "creationTimestamp": timestamp(A_MINUTE_AGO)}


def member_object(
    kind: Kind,
    name: str,
    *,
    owner: Object | None = None,
    controller: bool = True,
    labels: dict[str, str] | None = None,
    finalizers: Iterable[str] | None = None,
    created: datetime = A_MINUTE_AGO,
    **options: Any,
) -> Object:
    """An object of Cluster c; `owner` is an object that owns or controls it, `options` are those of `new_object`."""
    return new_object(
        kind,
        name,
        NAMESPACE,
        labels={CLUSTER_NAME: "c", **(labels or {})},
        owners=[owner_reference_to(owner, controller=controller)] if owner else [],
        finalizers=finalizers or [],
        metadata=EXISTING | {"creationTimestamp": timestamp(created)},
        **options,
    )


def cluster(
    *,
    provisioned: bool = True,
    initialized: bool = True,
    paused: bool = False,
    deleting: bool = False,
    endpoint: bool = True,
    since: datetime = A_MINUTE_AGO,
    domains: list[Object] | None = None,
) -> Object:
    """Cluster c, whose infrastructure and control plane have been ready for a minute."""
    types = ("InfrastructureReady", "ControlPlaneInitialized")
    status: Object = {
        "initialization": {"infrastructureProvisioned": provisioned, "controlPlaneInitialized": initialized},
        "conditions": [new_condition(type_, reason="Ready", since=since) for type_ in types],
    }
    if domains:
        status["failureDomains"] = domains
    spec: Object = {
        "infrastructureRef": object_reference(kinds.IN_MEMORY_CLUSTER, "c"),
        "controlPlaneRef": object_reference(kinds.IN_MEMORY_CONTROL_PLANE, "cp"),
    }
    if endpoint:
        spec["controlPlaneEndpoint"] = {"host": "127.0.0.1", "port": 6443}
    return new_cluster(
        "c",
        NAMESPACE,
        paused=paused,
        deleting=deleting,
        labels={CLUSTER_NAME: "c"},
        metadata=EXISTING,
        spec=spec,
        status=status,
    )


def machine(
    name: str = "m",
    *,
    data: str = "m",
    version: str = "v1.35.0",
    domain: str = "",
    owner: Object | None = None,
    status: Object | None = None,
    **options: Any,
) -> Object:
    """A Machine of Cluster c; `options` are those of `new_machine`."""
    spec: Object = {
        "version": version,
        "bootstrap": {"configRef": object_reference(kinds.IN_MEMORY_BOOTSTRAP, name)},
        "infrastructureRef": object_reference(kinds.IN_MEMORY_MACHINE, name),
    }
    if data:
        spec["bootstrap"]["dataSecretName"] = data
    if domain:
        spec["failureDomain"] = domain
    return new_machine(
        name,
        NAMESPACE,
        cluster="c",
        owners=[owner_reference_to(owner)] if owner else [],
        metadata=EXISTING,
        spec=spec,
        status=status or {},
        **options,
    )


def secret(name: str, *, created: datetime = A_MINUTE_AGO, annotations: dict[str, str] | None = None) -> Object:
    return member_object(SECRET, name, created=created, annotations=annotations, type=SECRET_TYPE)


def reconcile_object(controller: Controller, name: str, *objects: Object, **options: Any) -> Decision:
    """One reconcile of the object of this name; `options` are those of `view_of`."""
    return reconcile(controller, f"{NAMESPACE}/{name}", *objects, **options)
