"""The Paused condition, which every core controller reports on its objects."""

from __future__ import annotations

from herder.api.capi.conditions.lists import Condition, condition
from herder.api.capi.names import PAUSED, annotations_of
from herder.engine.meta.kinds import Object


def paused_condition(cluster: Object | None, obj: Object) -> Condition:
    """True if the Cluster or the object is paused; the message names the cause."""
    causes = []
    if cluster and (cluster.get("spec") or {}).get("paused"):
        causes.append("Cluster spec.paused is set to true")
    if PAUSED in annotations_of(obj):
        causes.append(f"{obj.get('kind') or 'Object'} has the {PAUSED} annotation")
    if causes:
        return condition("Paused", "True", "Paused", ", ".join(causes))
    return condition("Paused", "False", "NotPaused")
