"""Conditions of Cluster API objects: read, merge, mirror, summarize and aggregate them.

`status.conditions` is the v1beta2 list. `status.deprecated.v1beta1.conditions`, called legacy here, is written too as
long as clients read it.
"""

from herder.api.capi.conditions.aggregation import Priority, Reasons, aggregate, default_priority, summary
from herder.api.capi.conditions.legacy import (
    find_legacy,
    legacy,
    legacy_aggregate,
    legacy_mirror,
    legacy_summary,
    merged_legacy,
)
from herder.api.capi.conditions.lists import (
    Condition,
    condition,
    find,
    is_false,
    is_true,
    is_unknown,
    merged,
    timestamp,
)
from herder.api.capi.conditions.mirrored import InvalidCondition, mirror, reported
from herder.api.capi.conditions.paused import paused_condition

__all__ = [
    "Condition",
    "InvalidCondition",
    "Priority",
    "Reasons",
    "aggregate",
    "condition",
    "default_priority",
    "find",
    "find_legacy",
    "is_false",
    "is_true",
    "is_unknown",
    "legacy",
    "legacy_aggregate",
    "legacy_mirror",
    "legacy_summary",
    "merged",
    "merged_legacy",
    "mirror",
    "paused_condition",
    "reported",
    "summary",
    "timestamp",
]
