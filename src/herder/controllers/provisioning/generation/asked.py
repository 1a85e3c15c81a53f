"""What is asked for in a provisioning Cluster, pool by pool, and what of it cannot be had."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from herder.api.machines.credentials import GLOBAL_NAMESPACE, Place
from herder.api.machines.kinds import CONFIG_GROUP, VERSION, DriverKinds, driver_of, kinds_of
from herder.api.references.catalogue import pool_path
from herder.api.rke import names
from herder.engine.meta.kinds import Object

CONFIG_VERSION = f"{CONFIG_GROUP}/{VERSION}"

_ROLES = {"etcdRole": names.ETCD_ROLE, "controlPlaneRole": names.CONTROL_PLANE_ROLE, "workerRole": names.WORKER_ROLE}


class Problem(Exception):
    """Why nothing can be made from what is asked for: the field, and what to do about it."""


@dataclass(frozen=True)
class Pool:
    cluster: Object
    spec: Object
    position: int

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    @property
    def path(self) -> str:
        return f'spec.rkeConfig.machinePools[{self.position}] "{self.name}"'

    @property
    def deployment(self) -> str:
        return names.machine_deployment(self.cluster["metadata"]["name"], self.name)

    @property
    def config(self) -> Object:
        """The reference to what its machines are made from."""
        return self.spec.get("machineConfigRef") or {}

    @property
    def is_ours(self) -> bool:
        """Whether its machines are made by node drivers; others are made by another provider, from its own template."""
        return (self.config.get("apiVersion") or CONFIG_VERSION) == CONFIG_VERSION

    @cached_property
    def kinds(self) -> DriverKinds:
        return kinds_of(driver_of(self.config["kind"]))

    @property
    def operating_system(self) -> str:
        return self.spec.get("machineOS") or names.LINUX

    @property
    def role_labels(self) -> list[str]:
        return [label for field, label in _ROLES.items() if self.spec.get(field)]

    @property
    def is_autoscaled(self) -> bool:
        return self.spec.get("autoscalingMinSize") is not None and self.spec.get("autoscalingMaxSize") is not None

    @property
    def hostname_limit(self) -> int:
        """0 where none is given."""
        defaults = rke_config(self.cluster).get("machinePoolDefaults") or {}
        return int(self.spec.get("hostnameLengthLimit") or defaults.get("hostnameLengthLimit") or 0)

    @property
    def credential(self) -> str:
        """As it is written; "" where none is needed."""
        named = self.spec.get("cloudCredentialSecretName") or self.cluster["spec"].get("cloudCredentialSecretName")
        return str(named or "")

    @property
    def credential_path(self) -> str:
        """The field that names it, as approvals record it."""
        own = f"{pool_path(self.name)}.cloudCredentialSecretName"
        return own if self.spec.get("cloudCredentialSecretName") else "spec.cloudCredentialSecretName"

    @property
    def config_path(self) -> str:
        """The field that names its config, as approvals record it."""
        return f"{pool_path(self.name)}.machineConfigRef"

    @property
    def credential_place(self) -> Place | None:
        if not self.credential:
            return None
        namespace, colon, name = self.credential.partition(":")
        return Place(namespace, name) if colon else Place(self.cluster["metadata"]["namespace"], namespace)


def rke_config(cluster: Object) -> Object:
    return (cluster.get("spec") or {}).get("rkeConfig") or {}


def pools_of(cluster: Object) -> list[Pool]:
    return [Pool(cluster, spec, number) for number, spec in enumerate(rke_config(cluster).get("machinePools") or ())]


def checked_pools(cluster: Object) -> list[Pool]:
    """Raises Problem: all pools are good, or nothing is made."""
    pools = pools_of(cluster)
    deployments: dict[str, Pool] = {}
    for pool in pools:
        _check(pool)
        if other := deployments.get(pool.deployment):
            raise Problem(f"{pool.path}: duplicate of {other.path}; give it another name")
        deployments[pool.deployment] = pool
    return pools


def _check(pool: Pool) -> None:
    if not pool.config.get("kind") or not pool.config.get("name"):
        raise Problem(f"{pool.path}.machineConfigRef: kind and name of what its machines are made from are required")
    if not pool.role_labels:
        raise Problem(f"{pool.path}: at least one of etcdRole, controlPlaneRole and workerRole must be true")
    if pool.is_ours and not pool.config["kind"].endswith("Config"):
        raise Problem(f'{pool.path}.machineConfigRef.kind: "{pool.config["kind"]}" is no kind of machine config')
    place = pool.credential_place
    if place and place.namespace not in (pool.cluster["metadata"]["namespace"], GLOBAL_NAMESPACE):
        raise Problem(
            f"{pool.path}: cloud credential {pool.credential} is in another namespace; "
            f"name one of the cluster's own, or {GLOBAL_NAMESPACE}:<name>"
        )
