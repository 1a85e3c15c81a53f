"""managedFields across the scale subresource, which has a different kind.

A write through it is tracked on the Scale object, in which only the replicas matter. The manager that wrote them owns
the replicas of the scaled object, at the path where its kind has them.
"""

from __future__ import annotations

from collections.abc import Mapping

from herder.engine.meta.kinds import Object
from herder.engine.patch.fieldpath.fieldset import FieldSet, Path, contains, difference, from_paths, union
from herder.engine.patch.ssa.managers import ManagerId, Managers, Owned, decode, encode

SCALE_API_VERSION = "autoscaling/v1"
_REPLICAS: FieldSet = {"f:spec": {"f:replicas": {}}}

ReplicasPaths = Mapping[str, Path | None]
"""Path of the replicas in the scaled kind by apiVersion; None if it cannot be scaled."""


def entries_for_scale(parent: list[Object], replicas: ReplicasPaths) -> list[Object]:
    """Return the entries for the Scale object: only the owners of the replicas."""
    scale: Managers = {}
    for manager_id, owned in decode(parent, trusted=True).items():
        path = replicas.get(owned.api_version)
        if path and contains(owned.fields, path):
            scale[manager_id] = Owned(_REPLICAS, SCALE_API_VERSION, owned.time)
    return encode(scale)


def entries_for_parent(
    parent: list[Object], scale: list[Object], api_version: str, replicas: ReplicasPaths
) -> list[Object]:
    """Return the entries of the scaled object after a write of its Scale: managers that the Scale no longer names
    lose the replicas, new ones gain them."""
    owners = {
        _versionless(manager_id)
        for manager_id, owned in decode(scale, trusted=True).items()
        if owned.fields == _REPLICAS
    }
    after: Managers = {}
    for manager_id, owned in decode(parent, trusted=True).items():
        if owned.api_version not in replicas:
            continue
        path = replicas[owned.api_version]
        rest = owned
        if path and contains(owned.fields, path):
            if _versionless(manager_id) not in owners:
                rest = owned.with_fields(difference(owned.fields, from_paths([path])))
            owners.discard(_versionless(manager_id))
        if rest.fields:
            after[manager_id] = rest
    path = replicas.get(api_version)
    for owner in owners if path else ():
        manager_id = ManagerId.of(owner.manager, owner.operation, api_version, owner.subresource)
        own = from_paths([path]) if path else {}
        known = after.get(manager_id)
        # A new owner has no time, as in kube-apiserver.
        after[manager_id] = known.with_fields(union(known.fields, own)) if known else Owned(own, api_version)
    return encode(after)


def _versionless(manager_id: ManagerId) -> ManagerId:
    """Return the identity without version, which differs between the object and its Scale."""
    return manager_id._replace(api_version="")
