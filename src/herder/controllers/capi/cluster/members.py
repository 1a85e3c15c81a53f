"""Objects of a cluster, found by the cluster name label: deployments, sets, pools, and Machines by fact.

A cluster may have thousands of Machines, and every change of one may trigger a reconcile of the Cluster. Machines are
therefore never iterated: an index keeps them by the facts that the Cluster's status depends on, facts are counted, and
only Machines that a message names are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from herder.api.capi.conditions import Condition, find, is_false, is_true
from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, MACHINE_POOL, MACHINE_SET
from herder.api.capi.names import CLUSTER_NAME, CONTROL_PLANE, POOL_NAME, cluster_key, is_deleting, labels_of
from herder.engine.control.cache import Change
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.handlers import changed
from herder.engine.runtime.view import View

MEMBERS_INDEX = "cluster-members"  # pools, deployments and sets by cluster
FACTS_INDEX = "cluster-facts"  # Machines by cluster and fact

# Groups of Machines. A count within a group is the fact "<group>/<fact>".
WORKER = "worker"
CONTROL_PLANE_MACHINE = "control-plane"
STANDALONE = "standalone"  # workers without a MachineSet

# Facts about Machines.
EVALUATED = "judged"  # per role: Ready and UpToDate count for the Cluster's conditions
UNREADY = "unready"  # per role: Ready is not True or has a message
OUTDATED = "outdated"  # per role: UpToDate is not True or has a message
READY = "ready"  # per group, as the next two
AVAILABLE = "available"
UP_TO_DATE = "up-to-date"
WITH_NODE = "with-node"  # control plane only
DELETABLE = "deletable"  # per role: owned by the Cluster and not being deleted yet
UNHEALTHY = "unhealthy"
TO_REMEDIATE = "to-remediate"


@dataclass(frozen=True, slots=True)
class ClusterMembers:
    """The objects of one cluster."""

    view: View
    cluster: Object

    @property
    def deployments(self) -> list[Object]:
        return self._labelled(MACHINE_DEPLOYMENT)

    @property
    def sets(self) -> list[Object]:
        return self._labelled(MACHINE_SET)

    @property
    def pools(self) -> list[Object]:
        return self._labelled(MACHINE_POOL)

    @property
    def standalone_sets(self) -> list[Object]:
        return self.owned(self.sets)

    def owned(self, objects: Iterable[Object]) -> list[Object]:
        """Objects that the Cluster owns directly, not through a deployment or set."""
        uid = self.cluster["metadata"]["uid"]
        return [obj for obj in objects if any(owner.get("uid") == uid for owner in _owners(obj))]

    def machines(self, *fact: str) -> list[Object]:
        return self.view.select(MACHINE, index=self._index(fact))

    def machine_names(self, *fact: str) -> list[str]:
        return self.view.names(MACHINE, self._index(fact))

    def count(self, *fact: str) -> int:
        return self.view.count(MACHINE, self._index(fact))

    def _index(self, fact: tuple[str, ...]) -> tuple[str, str]:
        return FACTS_INDEX, _value(_key(self.cluster), *fact)

    def _labelled(self, kind: Kind) -> list[Object]:
        return self.view.select(kind, index=(MEMBERS_INDEX, _key(self.cluster)))


def cluster_of(obj: Object) -> Iterator[str]:
    """Indexer: the cluster that the object's label names."""
    name = labels_of(obj).get(CLUSTER_NAME)
    if name:
        yield cluster_key(obj["metadata"].get("namespace", ""), name)


def facts_of(machine: Object) -> Iterator[str]:
    """Indexer: the facts that hold for a Machine, each prefixed with its cluster."""
    for cluster in cluster_of(machine):
        for fact in _facts(machine):
            yield _value(cluster, *fact)


def machine_predicate(change: Change) -> bool:
    """Whether a change of a Machine can affect the Cluster's status."""
    if change.old is None or change.new is None:
        return True
    return _reported_facts(change.old) != _reported_facts(change.new)


pool_predicate = changed("spec.replicas", "status", "metadata.labels", "metadata.ownerReferences")


def set_predicate(change: Change) -> bool:
    """Of a deployment's sets only creation and deletion matter: the deployment reports the rest."""
    sides = (change.old, change.new)
    return None in sides or (any(obj and _is_owned(obj) for obj in sides) and pool_predicate(change))


def kubelet_version(machine: Object) -> str:
    version: str = ((machine.get("status") or {}).get("nodeInfo") or {}).get("kubeletVersion") or ""
    return version


def _facts(machine: Object) -> Iterator[tuple[str, ...]]:
    role = CONTROL_PLANE_MACHINE if CONTROL_PLANE in labels_of(machine) else WORKER
    owned = _is_owned(machine)
    yield (role,)
    if owned and not is_deleting(machine):
        yield role, DELETABLE
    if role == CONTROL_PLANE_MACHINE and (machine.get("status") or {}).get("nodeRef") and not is_deleting(machine):
        yield role, WITH_NODE
    if role == WORKER and POOL_NAME in labels_of(machine):
        return  # Machines of MachinePools have no such conditions.
    yield role, EVALUATED
    if _has_message(find(machine, "Ready")):
        yield role, UNREADY
    if _has_message(find(machine, "UpToDate")):
        yield role, OUTDATED
    if role == CONTROL_PLANE_MACHINE:
        yield from _counted(role, machine)
    elif owned:
        yield (STANDALONE,)
        yield from _counted(STANDALONE, machine)
    if is_false(machine, "HealthCheckSucceeded"):
        yield (UNHEALTHY,)
        if is_false(machine, "OwnerRemediated"):
            yield (TO_REMEDIATE,)


def _counted(group: str, machine: Object) -> Iterator[tuple[str, ...]]:
    for type_, fact in (("Ready", READY), ("Available", AVAILABLE), ("UpToDate", UP_TO_DATE)):
        if is_true(machine, type_):
            yield group, fact


def _has_message(found: Condition | None) -> bool:
    """Whether a condition is anything but True without a message."""
    return found is None or found.get("status") != "True" or bool(found.get("message"))


def _reported_facts(machine: Object) -> object:
    conditions = [find(machine, type_) for type_ in ("Ready", "UpToDate", "OwnerRemediated")]
    messages = [(known.get("status"), known.get("message")) if known else None for known in conditions]
    return list(facts_of(machine)), messages, kubelet_version(machine)


def _is_owned(obj: Object) -> bool:
    """Whether a Cluster owns the object."""
    return any(owner.get("kind") == CLUSTER.kind for owner in _owners(obj))


def _owners(obj: Object) -> list[Object]:
    owners: list[Object] = obj["metadata"].get("ownerReferences") or []
    return owners


def _key(cluster: Object) -> str:
    return cluster_key(cluster["metadata"]["namespace"], cluster["metadata"]["name"])


def _value(cluster: str, *fact: str) -> str:
    return "/".join((cluster, *fact))
