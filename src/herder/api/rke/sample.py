"""Build a provisioning Cluster and its machine configs from pool sizes, for `herder create cluster`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from herder.api.machines.kinds import kinds_of
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.engine.meta.kinds import Kind, Object

REPORT_ONLY = "0s"  # as unhealthyNodeTimeout: lost machines are reported, not replaced
ROLE_FIELDS = {"etcd": "etcdRole", "controlplane": "controlPlaneRole", "worker": "workerRole"}


@dataclass(frozen=True, slots=True)
class Pool:
    name: str
    quantity: int
    roles: tuple[str, ...]  # keys of ROLE_FIELDS
    settings: Mapping[str, object] = field(default_factory=dict)  # fields of the driver's machine config
    unhealthy_node_timeout: str = REPORT_ONLY  # only workers are replaced: servers hold data


def servers_and_workers(servers: int, workers: int) -> tuple[Pool, ...]:
    """Return a server and a worker pool. Without workers, servers get the worker role: a cluster needs all
    three roles.
    """
    server_roles = ("etcd", "controlplane", *(() if workers else ("worker",)))
    pools = (Pool("servers", servers, server_roles), Pool("workers", workers, ("worker",)))
    return tuple(pool for pool in pools if pool.quantity)


def cluster_objects(
    name: str, namespace: str, *, driver: str, version: str, pools: Sequence[Pool], credential: str = ""
) -> list[tuple[Kind, Object]]:
    """Return the objects in creation order: referenced objects first."""
    config = kinds_of(driver).config
    configs: list[tuple[Kind, Object]] = [
        (config, {**_object(config, config_name(name, pool.name), namespace), **pool.settings}) for pool in pools
    ]
    spec: Object = {
        "kubernetesVersion": version,
        "rkeConfig": {"machinePools": [_pool(name, config, p) for p in pools]},
    }
    if credential:
        spec["cloudCredentialSecretName"] = credential
    return [*configs, (PROVISIONING_CLUSTER, {**_object(PROVISIONING_CLUSTER, name, namespace), "spec": spec})]


def config_name(cluster: str, pool: str) -> str:
    return f"nc-{cluster}-{pool}"


def _pool(cluster: str, config: Kind, pool: Pool) -> Object:
    return {
        "name": pool.name,
        "quantity": pool.quantity,
        "machineConfigRef": {"kind": config.kind, "name": config_name(cluster, pool.name)},
        **{ROLE_FIELDS[role]: True for role in pool.roles},
        **({"unhealthyNodeTimeout": pool.unhealthy_node_timeout} if pool.roles == ("worker",) else {}),
    }


def _object(kind: Kind, name: str, namespace: str) -> Object:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name, "namespace": namespace},
    }
