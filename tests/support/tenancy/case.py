"""One write or deletion of the table, and builders of those that several parts of it share."""

from __future__ import annotations

import base64
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from herder.api.capi.kinds import SECRET
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.engine.client.client import Client
from herder.engine.meta.errors import AlreadyExists
from herder.engine.meta.kinds import Kind, Object

OWNER = {"apiVersion": MANAGEMENT_CLUSTER.api_version, "kind": MANAGEMENT_CLUSTER.kind, "name": "c-mine", "uid": "1-2"}
CONTROLLER = {"apiVersion": "rke.cattle.io/v1", "kind": "RKEBootstrap", "name": "x", "uid": "1", "controller": True}


@dataclass(frozen=True)
class Case:
    """A create by the user; with `patch`, a merge patch by the user of an object that an administrator created; with
    `delete_options`, a delete of such an object.
    """

    id: str
    kind: Kind
    meta: Object
    fields: Object = field(default_factory=dict)
    patch: Object | None = None
    subresource: str = ""  # to patch
    delete_options: Object | None = None
    status: Object | None = None  # that the manager has reported

    @property
    def object(self) -> Object:
        return {"apiVersion": self.kind.api_version, "kind": self.kind.kind, "metadata": self.meta, **self.fields}


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def secret(id_: str, name: str, namespace: str = "fleet-default", *, type: str = "", **meta: Any) -> Case:
    fields: Object = {"type": type} if type else {}
    return Case(id_, SECRET, {"name": name, "namespace": namespace, **meta}, fields)


def managed(id_: str, name: str, patch: Object | None = None, **spec: Any) -> Case:
    return Case(id_, MANAGEMENT_CLUSTER, {"name": name}, {"spec": spec}, patch)


def provisioned(id_: str, name: str, namespace: str = "fleet-default", **annotations: str) -> Case:
    return Case(
        id_,
        PROVISIONING_CLUSTER,
        {"name": name, "namespace": namespace, "annotations": annotations},
        {"spec": {}},
    )


def orphaned(kind: Kind, name: str, namespace: str = "", **fields: Any) -> tuple[Case, ...]:
    """Every way to keep dependents of an object when it is deleted."""
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    held = {"finalizers": ["orphan"]}
    return (
        Case(f"{kind.plural} deleted with Orphan", kind, meta, fields, delete_options={"propagationPolicy": "Orphan"}),
        Case(f"{kind.plural} deleted in the old way", kind, meta, fields, delete_options={"orphanDependents": True}),
        Case(f"{kind.plural} created with the finalizer", kind, {**meta, **held, "name": f"{name}-2"}, fields),
    )


async def create_for(client: Client, case: Case) -> None:
    """Create the object that the user of the case patches or deletes."""
    name, namespace = case.meta["name"], case.meta.get("namespace", "")
    with suppress(AlreadyExists):
        await client.create(case.kind.resource, case.object, namespace=namespace)
    if case.status is not None:
        status = {"status": case.status}
        await client.patch(case.kind.resource, name, status, namespace=namespace, subresource="status")
