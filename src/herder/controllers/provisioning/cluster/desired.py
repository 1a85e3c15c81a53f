"""Machine pools of a provisioning Cluster's spec, and their validation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from herder.api.machines.credentials import GLOBAL_NAMESPACE, SecretKey
from herder.api.machines.kinds import CONFIG_GROUP, VERSION, DriverKinds, driver_of, kinds_of
from herder.api.references.catalogue import pool_path
from herder.api.rke import names
from herder.engine.meta.kinds import Object

CONFIG_VERSION = f"{CONFIG_GROUP}/{VERSION}"

_ROLES = {"etcdRole": names.ETCD_ROLE, "controlPlaneRole": names.CONTROL_PLANE_ROLE, "workerRole": names.WORKER_ROLE}


class Problem(Exception):
    """The spec cannot be generated. The message names the field and what to do."""


@dataclass(frozen=True)
class Pool:
    """An entry of spec.rkeConfig.machinePools."""

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
        """machineConfigRef: the machine config, or the infrastructure template of another provider."""
        return self.spec.get("machineConfigRef") or {}

    @property
    def uses_node_driver(self) -> bool:
        """Whether a node driver creates its machines, rather than another infrastructure provider."""
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
        """Maximum length of host names; 0 if there is none."""
        defaults = rke_config(self.cluster).get("machinePoolDefaults") or {}
        return int(self.spec.get("hostnameLengthLimit") or defaults.get("hostnameLengthLimit") or 0)

    @property
    def credential(self) -> str:
        """The cloud credential as written in the spec; "" if there is none."""
        reference = self.spec.get("cloudCredentialSecretName") or self.cluster["spec"].get("cloudCredentialSecretName")
        return str(reference or "")

    @property
    def credential_path(self) -> str:
        """The field that names the credential, as approvals record it."""
        pool_field = f"{pool_path(self.name)}.cloudCredentialSecretName"
        return pool_field if self.spec.get("cloudCredentialSecretName") else "spec.cloudCredentialSecretName"

    @property
    def config_path(self) -> str:
        """The field that names the machine config, as approvals record it."""
        return f"{pool_path(self.name)}.machineConfigRef"

    @property
    def credential_key(self) -> SecretKey | None:
        if not self.credential:
            return None
        namespace, colon, name = self.credential.partition(":")
        return SecretKey(namespace, name) if colon else SecretKey(self.cluster["metadata"]["namespace"], namespace)


def rke_config(cluster: Object) -> Object:
    return (cluster.get("spec") or {}).get("rkeConfig") or {}


def pools_of(cluster: Object) -> list[Pool]:
    return [Pool(cluster, spec, number) for number, spec in enumerate(rke_config(cluster).get("machinePools") or ())]


def checked_pools(cluster: Object) -> list[Pool]:
    """All pools, validated. Raises Problem if any is invalid: then nothing is generated."""
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
        raise Problem(f"{pool.path}.machineConfigRef: kind and name are required")
    if not pool.role_labels:
        raise Problem(f"{pool.path}: at least one of etcdRole, controlPlaneRole and workerRole must be true")
    if pool.uses_node_driver and not pool.config["kind"].endswith("Config"):
        raise Problem(f'{pool.path}.machineConfigRef.kind: "{pool.config["kind"]}" is not a kind of machine config')
    key = pool.credential_key
    if key and key.namespace not in (pool.cluster["metadata"]["namespace"], GLOBAL_NAMESPACE):
        raise Problem(
            f"{pool.path}: cloud credential {pool.credential} is in another namespace; "
            f"name one of the cluster's own, or {GLOBAL_NAMESPACE}:<name>"
        )
