"""Provisioning Clusters and the objects that they reference or generate, as the API server serves them."""

from __future__ import annotations

import json
from typing import Any

from herder.api.machines.drivers.schemas import schema
from herder.api.machines.kinds import kinds_of
from herder.api.management import names
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.engine.meta.kinds import Object
from tests.support.builders import new_object

WORKSPACE, NAME = "fleet-default", "meadow"
VERSION = "v1.34.1+k3s1"
MANAGEMENT_NAME = "c-m-bcdfghjk"
DRIVER = "shed"
KINDS = kinds_of(DRIVER)
FIELDS = {name: {"type": "string", "create": True, "update": True} for name in ("image", "size")}
SCHEMA = schema("shedconfig", FIELDS)
WITH_SCHEMA = {"dynamicSchemaSpec": json.dumps(SCHEMA["spec"])}
"""Fields of a pool that the manager adds before it generates anything."""
FINALIZERS = ["wrangler.cattle.io/provisioning-cluster-remove", "wrangler.cattle.io/rke-cluster-remove"]


def config(name: str, **fields: str) -> Object:
    """A machine config of the driver."""
    return new_object(KINDS.config, name, WORKSPACE, **fields)


def pool(name: str, *roles: str, config: str = "sheds", **fields: Any) -> Object:
    """A machine pool, of workers unless `roles` says otherwise."""
    role_fields = {f"{role}Role": True for role in roles or ("worker",)}
    return {"name": name, "machineConfigRef": {"kind": KINDS.config.kind, "name": config}, **role_fields, **fields}


def cluster(*pools: Object, spec: Object | None = None, **rke_config: Any) -> Object:
    """A provisioning Cluster as a user creates it."""
    config = {**({"machinePools": [*pools]} if pools else {}), **rke_config}
    cluster_spec = {"kubernetesVersion": VERSION, "rkeConfig": config, **(spec or {})}
    return new_object(PROVISIONING_CLUSTER, NAME, WORKSPACE, spec=cluster_spec)


def stored_cluster(*pools: Object, spec: Object | None = None, meta: Object | None = None, **rke_config: Any) -> Object:
    """A cluster as the controllers see it: with its finalizers and the name of its management Cluster."""
    cluster_object = cluster(*pools, spec=spec, **rke_config)
    metadata = {"finalizers": FINALIZERS, "uid": "cluster-uid", **(meta or {})}
    return {
        **cluster_object,
        "metadata": {**cluster_object["metadata"], **metadata},
        "status": {"clusterName": "c-m-abcdefgh"},
    }


def new_management_cluster(
    name: str = MANAGEMENT_NAME, *, created_for: str = "ws/meadow", deleting: bool = False, **status: object
) -> Object:
    """A management Cluster that was created for the provisioning Cluster "namespace/name"."""
    metadata = {"annotations": {names.PROVISIONING_CLUSTER_OF: created_for} if created_for else {}}
    return new_object(
        MANAGEMENT_CLUSTER,
        name,
        finalizers=[names.REMOVE_MANAGEMENT],
        deleting=deleting,
        metadata=metadata,
        spec={"fleetWorkspaceName": created_for.partition("/")[0]},
        status=status,
    )


def new_provisioning_cluster(
    *, annotations: dict[str, str] | None = None, deleting: bool = False, **status: object
) -> Object:
    """The provisioning Cluster "ws/meadow", without a spec."""
    return new_object(
        PROVISIONING_CLUSTER,
        "meadow",
        "ws",
        annotations=annotations,
        finalizers=[names.REMOVE_PROVISIONING],
        deleting=deleting,
        spec={},
        status=status,
    )
