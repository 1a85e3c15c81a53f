"""Plan entries: the Machines of a cluster with their plan Secrets.

As in Rancher's planner, labels and annotations of the plan Secret carry the roles, the init node and the join URL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from herder.api.capi import names as capi
from herder.api.capi.conditions import is_true
from herder.api.capi.kinds import MACHINE
from herder.api.rke import names
from herder.api.rke.kinds import BOOTSTRAP, PLAN_SECRET
from herder.api.rke.node.plan_secret import PlanSecret
from herder.controllers.planner.distributions.interface import Roles
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.view import View

RECONCILED = "Reconciled"
"""Condition of Machines and of the RKEControlPlane: the spec is applied."""

BY_CLUSTER = "planned-in"
"""Index of Machines by Cluster, limited to those with an RKEBootstrap."""

_IN_DRAIN = (names.PRE_DRAIN, names.POST_DRAIN, names.DRAIN_OPTIONS, names.UNCORDON)


@dataclass(frozen=True)
class PlanEntry:
    """A Machine and its plan Secret (`planEntry` in Rancher)."""

    machine: Object
    plan: PlanSecret

    @property
    def name(self) -> str:
        return str(self.machine["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.machine["metadata"]["uid"])

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.plan.annotations

    @cached_property
    def roles(self) -> Roles:
        return Roles(self.plan.is_etcd, self.plan.is_control_plane, self.plan.is_worker)

    @property
    def is_init(self) -> bool:
        return self.plan.is_init

    @property
    def is_deleting(self) -> bool:
        return capi.is_deleting(self.machine)

    @property
    def awaits_etcd_removal(self) -> bool:
        return awaits_etcd_removal(self.machine)

    @property
    def is_paused(self) -> bool:
        return capi.PAUSED in capi.annotations_of(self.machine)

    @property
    def infrastructure_ready(self) -> bool:
        return is_true(self.machine, "InfrastructureReady")

    @property
    def is_reported_reconciled(self) -> bool:
        return is_true(self.machine, RECONCILED)

    @property
    def can_be_init(self) -> bool:
        """Whether it can bootstrap the cluster. Its addresses are known only once its infrastructure is ready."""
        failed = (self.machine.get("status") or {}).get("phase") == "Failed"
        return self.roles.etcd and not self.is_deleting and not failed and self.infrastructure_ready

    @property
    def join_url(self) -> str:
        return self.annotations.get(names.JOIN_URL, "")

    @property
    def joined_to(self) -> str:
        return self.annotations.get(names.JOINED_TO, "")

    @property
    def is_joinable(self) -> bool:
        return self.roles.control_plane and not self.is_deleting and bool(self.join_url)

    @property
    def in_drain(self) -> bool:
        return any(self.annotations.get(mark) for mark in _IN_DRAIN)

    @property
    def node_info(self) -> Mapping[str, str]:
        return (self.machine.get("status") or {}).get("nodeInfo") or {}

    @property
    def has_node(self) -> bool:
        return bool(((self.machine.get("status") or {}).get("nodeRef") or {}).get("name"))


def awaits_etcd_removal(machine: Object) -> bool:
    """Whether the Machine is being deleted and its etcd member must be removed first."""
    return capi.is_deleting(machine) and names.ETCD_HOOK in capi.annotations_of(machine)


def machines_of(view: View, namespace: str, cluster: str) -> list[Object]:
    """Machines of a cluster, sorted by name."""
    return view.select(MACHINE, index=(BY_CLUSTER, f"{namespace}/{cluster}"))


def entries_of(view: View, machines: list[Object]) -> list[PlanEntry]:
    """Plan entries of the Machines. Machines without a plan Secret have no role yet and are left out."""
    found: list[PlanEntry] = []
    for machine in machines:
        secret = view.get(PLAN_SECRET, names.plan_secret(bootstrap_of(machine)), machine["metadata"]["namespace"])
        if secret is not None:
            found.append(PlanEntry(machine, PlanSecret(secret)))
    return found


def entries_by_key(view: View, keys: Iterable[Key]) -> list[PlanEntry]:
    """Plan entries of the Machines with these keys, sorted by name."""
    found = [view.get(MACHINE, key.name, key.namespace) for key in sorted(keys)]
    return entries_of(view, [machine for machine in found if machine is not None])


def bootstrap_of(machine: Object) -> str:
    """The name of the Machine's RKEBootstrap; empty if another provider bootstraps it."""
    reference = ((machine.get("spec") or {}).get("bootstrap") or {}).get("configRef") or {}
    ours = (reference.get("kind"), reference.get("apiGroup")) == (BOOTSTRAP.kind, BOOTSTRAP.group)
    return str(reference.get("name", "")) if ours else ""


def by_cluster(machine: Object) -> list[str]:
    cluster = (machine["metadata"].get("labels") or {}).get(capi.CLUSTER_NAME)
    return [f"{machine['metadata']['namespace']}/{cluster}"] if cluster and bootstrap_of(machine) else []
