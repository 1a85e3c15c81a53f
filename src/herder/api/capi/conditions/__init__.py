"""Conditions of Cluster API objects: reading them, keeping both lists, and making one condition of many.

`status.conditions` is the list of v1beta2; `status.deprecated.v1beta1.conditions` the older one, here called legacy,
which is written too for as long as clients read it.
"""

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
from herder.api.capi.conditions.merging import Priority, Reasons, aggregate, default_priority, summary
from herder.api.capi.conditions.mirroring import InvalidCondition, mirror, reported
from herder.api.capi.conditions.pausing import paused_condition

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
