"""What a restore trusts, and users may not write: specs that the cluster has had, and the list of its snapshots.

A restore writes the spec of a snapshot with the rights of its author, who may be an administrator. So only admission
may have accepted that spec. Snapshots name files that the manager deletes and restores in their cluster.
"""

from __future__ import annotations

from collections.abc import Iterator

from herder.api.capi.names import annotations_of
from herder.api.rke.names import CLUSTER_SPEC, PREVIOUS_SPEC, SNAPSHOT_NAME, SNAPSHOT_SHA256
from herder.engine.meta.kinds import Object

SPEC_COPIES = (CLUSTER_SPEC, PREVIOUS_SPEC)
"""Annotations of RKEControlPlanes. The manager records the digest of the first, and snapshots contain them."""
HISTORY = "specHistory"
BAD_COPY = (
    f"annotations {' and '.join(SPEC_COPIES)}: the manager copies them from the provisioning Cluster, and a restore "
    "trusts them; leave them as they are, and change the Cluster"
)
BAD_HISTORY = f"status.{HISTORY}: the manager records the specs that a restore trusts; leave the field as it is"

SNAPSHOT_FIELDS = ("spec", "snapshotFile")
SNAPSHOT_MARKS = (SNAPSHOT_SHA256, SNAPSHOT_NAME)
BAD_SNAPSHOT = (
    "the manager lists the snapshots that servers report, and deletes and restores their files; delete the object to "
    "delete its file, and take another snapshot with: herder snapshot create"
)


def control_plane_problems(old: Object | None, new: Object) -> Iterator[str]:
    if _marks(new, SPEC_COPIES) != _marks(old, SPEC_COPIES):
        yield BAD_COPY
    if _history(new) != _history(old):
        yield BAD_HISTORY


def snapshot_problems(old: Object | None, new: Object) -> Iterator[str]:
    """Users may delete snapshots, and change labels and finalizers. An owner would be the machine that has the file."""
    is_changed = old is None or any(new.get(field) != old.get(field) for field in SNAPSHOT_FIELDS)
    if is_changed or _owners(new) - _owners(old) or _marks(new, SNAPSHOT_MARKS) != _marks(old, SNAPSHOT_MARKS):
        yield BAD_SNAPSHOT


def _marks(obj: Object | None, names: tuple[str, ...]) -> list[str | None]:
    found = annotations_of(obj or {"metadata": {}})
    return [found.get(name) for name in names]


def _owners(obj: Object | None) -> set[str]:
    return {str(each.get("uid")) for each in (obj or {"metadata": {}})["metadata"].get("ownerReferences") or ()}


def _history(obj: Object | None) -> object:
    return ((obj or {}).get("status") or {}).get(HISTORY) or []
