"""Members of MachineSets, MachineDeployments and control planes: what they control in their own Cluster.

Users write owner references, but may name only Clusters that they may use. A Machine of one Cluster that claims an
owner in another would otherwise count as a replica there, and the owner would delete one of its own Machines in return.
"""

from __future__ import annotations

from collections.abc import Iterable

from herder.engine.control.cache import controller_in_namespace, owned_by
from herder.engine.meta.kinds import Object

MEMBERS = "members"
"""Index by `member_keys`."""


def member_keys(obj: Object) -> list[str]:
    """Indexer: the controller and the Cluster of a Machine or MachineSet."""
    return [f"{owner}/{cluster_name(obj)}" for owner in controller_in_namespace(obj)]


def members_key(owner: Object) -> str:
    """Return the index value for the members of a MachineSet or MachineDeployment."""
    meta = owner["metadata"]
    return f"{owned_by(meta.get('namespace', ''), meta['uid'])}/{cluster_name(owner)}"


def of_same_cluster(objects: Iterable[Object], cluster: str) -> list[Object]:
    return [each for each in objects if cluster_name(each) == cluster]


def cluster_name(obj: Object) -> str:
    return str((obj.get("spec") or {}).get("clusterName") or "")
