"""Tables of objects: those of the API server, and Herder's own for Clusters and Machines."""

from __future__ import annotations

from datetime import datetime

from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import CLUSTER_NAME, labels_of
from herder.api.capi.names import CONTROL_PLANE as CONTROL_PLANE_LABEL
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke import names
from herder.api.rke.machines.health import machine_reason
from herder.engine.apiserver.tables.duration import age
from herder.engine.client.discovery import Found
from herder.engine.meta.kinds import GroupResource, Object

MEDIA_TYPE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
WORKSPACE_KINDS = (PROVISIONING_CLUSTER.resource.group_resource, MACHINE.resource.group_resource)
"""Kinds that commands look for in the default workspace, and of which users see those of their own clusters."""

_ROLE_NAMES = {names.ETCD_ROLE: "etcd", names.CONTROL_PLANE_ROLE: "controlplane", names.WORKER_ROLE: "worker"}
_ADDRESSES = ("ExternalIP", "InternalIP", "ExternalDNS", "InternalDNS", "Hostname")
_MACHINE_COLUMNS = ("Name", "Cluster", "Roles", "Address", "Version", "Phase", "Reason", "Age")
_WIDE_MACHINE_COLUMNS = ("Node", "Provider ID")
_CLUSTER_COLUMNS = ("Name", "Status", "Version", "Machines", "Reason", "Age")


def is_machine(found: Found) -> bool:
    return found.resource.group_resource == MACHINE.resource.group_resource


def is_of_workspace(resource: GroupResource) -> bool:
    return resource in WORKSPACE_KINDS


def own_table(found: Found, items: list[Object], now: datetime) -> Object:
    """Table of Machines or Clusters that is rendered here."""
    if is_machine(found):
        columns: list[Object] = [{"name": name} for name in _MACHINE_COLUMNS]
        columns += [{"name": name, "priority": 1} for name in _WIDE_MACHINE_COLUMNS]
        rows = [{"cells": _machine_cells(item, now), "object": item} for item in items]
    else:
        columns = [{"name": name} for name in _CLUSTER_COLUMNS]
        rows = [{"cells": _cluster_cells(item, now), "object": item} for item in items]
    return {"kind": "Table", "columnDefinitions": columns, "rows": rows}


def plain_table(items: list[Object]) -> Object:
    """For servers without table support."""
    rows = [{"cells": [item["metadata"]["name"]], "object": item} for item in items]
    return {"kind": "Table", "columnDefinitions": [{"name": "Name"}], "rows": rows}


def _machine_cells(machine: Object, now: datetime) -> list[str]:
    spec, status = machine.get("spec") or {}, machine.get("status") or {}
    version = (status.get("nodeInfo") or {}).get("kubeletVersion") or spec.get("version") or ""
    return [
        machine["metadata"]["name"],
        spec.get("clusterName") or labels_of(machine).get(CLUSTER_NAME, ""),
        _roles(machine),
        _address(status),
        version,
        status.get("phase") or "Pending",
        machine_reason(machine),
        age(machine, now),
        (status.get("nodeRef") or {}).get("name") or "",
        spec.get("providerID") or "",
    ]


def _roles(machine: Object) -> str:
    labels = labels_of(machine)
    roles = [name for label, name in _ROLE_NAMES.items() if labels.get(label) == "true"]
    if not roles and names.POOL_NAME not in labels:  # of another provider
        roles = ["controlplane"] if CONTROL_PLANE_LABEL in labels else ["worker"]
    return ",".join(roles)


def _address(status: Object) -> str:
    """The address that a person would connect to."""
    known = {each.get("type"): each.get("address") for each in status.get("addresses") or ()}
    return str(next((known[type_] for type_ in _ADDRESSES if known.get(type_)), ""))


def _cluster_cells(cluster: Object, now: datetime) -> list[str]:
    display = (cluster.get("status") or {}).get("display") or {}
    shown = [display.get(field) or "" for field in ("state", "version", "readyMachines", "message")]
    return [cluster["metadata"]["name"], *shown, age(cluster, now)]
