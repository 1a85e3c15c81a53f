"""managedFields across the scale subresource, which has a kind of its own.

A write through it is tracked on the Scale object, whose one field of interest is its replicas; whoever wrote that owns
the replicas of the scaled object, wherever its kind keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping

from herder.engine.meta.kinds import Object
from herder.engine.patch.fieldset import FieldSet, Path, contains, difference, from_paths, union
from herder.engine.patch.managers import ManagerId, Managers, Owned, decode, encode

SCALE_API_VERSION = "autoscaling/v1"
_REPLICAS: FieldSet = {"f:spec": {"f:replicas": {}}}

ReplicasPaths = Mapping[str, Path | None]
"""Where the scaled kind has its replicas, for each apiVersion; None where it cannot be scaled."""


def entries_for_scale(parent: list[Object], replicas: ReplicasPaths) -> list[Object]:
    """The entries to put on the Scale object: who owns the replicas, and nothing else."""
    scale: Managers = {}
    for who, owned in decode(parent, trusted=True).items():
        path = replicas.get(owned.api_version)
        if path and contains(owned.fields, path):
            scale[who] = Owned(_REPLICAS, SCALE_API_VERSION, owned.time)
    return encode(scale)


def entries_for_parent(
    parent: list[Object], scale: list[Object], api_version: str, replicas: ReplicasPaths
) -> list[Object]:
    """The scaled object's entries after a write of its Scale: managers that the Scale no longer names have lost the
    replicas, those that are new have gained them."""
    owners = {_versionless(who) for who, owned in decode(scale, trusted=True).items() if owned.fields == _REPLICAS}
    after: Managers = {}
    for who, owned in decode(parent, trusted=True).items():
        if owned.api_version not in replicas:
            continue
        path = replicas[owned.api_version]
        rest = owned
        if path and contains(owned.fields, path):
            if _versionless(who) not in owners:
                rest = owned.with_fields(difference(owned.fields, from_paths([path])))
            owners.discard(_versionless(who))
        if rest.fields:
            after[who] = rest
    path = replicas.get(api_version)
    for owner in owners if path else ():
        who = ManagerId.of(owner.manager, owner.operation, api_version, owner.subresource)
        mine = from_paths([path]) if path else {}
        known = after.get(who)
        # A new owner has no time, as the real server leaves it.
        after[who] = known.with_fields(union(known.fields, mine)) if known else Owned(mine, api_version)
    return encode(after)


def _versionless(who: ManagerId) -> ManagerId:
    """A manager is the same on either side of the subresource, though the two have different versions."""
    return who._replace(api_version="")
