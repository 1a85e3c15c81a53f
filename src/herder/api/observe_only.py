"""Observe-only clusters: the manager reads them and reports their status, and changes nothing.

A manager that was restored from a backup does not know what happened since. It marks all its clusters, so that no
decision made on old data reaches a machine, until a user has compared them and resumes them: `herder resume cluster`.
The mark is an annotation on the provisioning Cluster, the management Cluster and the Cluster API Cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from herder.api.capi.kinds import CLUSTER
from herder.api.capi.names import annotations_of
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.engine.control.cache import Indexer
from herder.engine.meta.kinds import Kind, Object

OBSERVE_ONLY = "herder.io/observe-only"
"""Annotation of a cluster. Its value says why, such as "restored from the backup of 2026-01-31T00:00:00Z"."""
MARKED_KINDS: tuple[Kind, ...] = (PROVISIONING_CLUSTER, MANAGEMENT_CLUSTER, CLUSTER)

CONDITION = "ObserveOnly"
GUARD = "observe-only"
_MAX_CAUSE = 120


def mark_of(obj: Object | None) -> str | None:
    """Return why a cluster is observe-only; None if it is not."""
    return None if obj is None else annotations_of(obj).get(OBSERVE_ONLY)


def message(name: str, mark: str) -> str:
    """What users see while nothing is changed."""
    cause = mark[:_MAX_CAUSE] or "by request"
    return f"observe-only ({cause}): nothing is changed; compare and resume with: herder resume cluster {name}"


# --- index ------------------------------------------------------------------------------------------------------------

INDEX, MARKED = "observe-only", "marked"


def _marked(obj: Object) -> Iterable[str]:
    return (MARKED,) if OBSERVE_ONLY in annotations_of(obj) else ()


INDEXES: Mapping[str, Indexer] = {INDEX: _marked}
"""For the three kinds of clusters. Guards count the marked ones, which is cheap: usually, there are none."""
