"""What is filled in and what is refused when an object of Cluster API is written: pure functions, kind by kind.

The embedded server calls them in its own process, a real one through webhooks. Either way defaults come before the
schema is checked, and validation after it: `default` must bear anything, `validate` may rely on types. What the
schemas themselves refuse (patterns, enums, CEL rules) is not repeated here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from herder.api.capi import kinds
from herder.api.capi.admission import (
    cluster,
    cluster_resource_set,
    machine,
    machine_deployment,
    machine_drain_rule,
    machine_health_check,
    machine_pool,
    machine_set,
)
from herder.api.capi.admission.total import Default, defaulted, problems
from herder.api.capi.admission.values import section
from herder.engine.meta.errors import FieldError
from herder.engine.meta.kinds import Kind, Object

__all__ = ["RULES", "Admission", "is_concerned"]


@dataclass(frozen=True, slots=True)
class Admission:
    """The rules of one kind. `old` is the stored object of an update, None for a create. Neither function raises."""

    validate: Callable[[Object, Object | None], list[FieldError]]
    default: Default | None = None  # returns a new object; None: the kind has no defaults

    def __post_init__(self) -> None:
        validate, default = self.validate, self.default
        object.__setattr__(self, "validate", lambda obj, old: problems(validate, obj, old, "spec"))
        if default is not None:
            object.__setattr__(self, "default", lambda obj, old: defaulted(default, obj, old))


RULES: Mapping[Kind, Admission] = {
    kinds.CLUSTER: Admission(cluster.validate),
    kinds.MACHINE: Admission(machine.validate, machine.default),
    kinds.MACHINE_SET: Admission(machine_set.validate, machine_set.default),
    kinds.MACHINE_DEPLOYMENT: Admission(machine_deployment.validate, machine_deployment.default),
    kinds.MACHINE_POOL: Admission(machine_pool.validate, machine_pool.default),
    kinds.MACHINE_HEALTH_CHECK: Admission(machine_health_check.validate, machine_health_check.default),
    kinds.MACHINE_DRAIN_RULE: Admission(machine_drain_rule.validate),
    kinds.CLUSTER_RESOURCE_SET: Admission(cluster_resource_set.validate, cluster_resource_set.default),
    kinds.CLUSTER_RESOURCE_SET_BINDING: Admission(cluster_resource_set.validate_binding),
}


def is_concerned(obj: Object, old: Object | None) -> bool:
    """Whether any rule could have something to say: not where finalizers, owners or the status alone change.

    So the controllers' own bookkeeping costs nothing, and an object that older rules let in can always be deleted.
    """
    return old is None or any(section(obj, *path) != section(old, *path) for path in CONCERNS)


CONCERNS = (("spec",), ("metadata", "labels"), ("metadata", "annotations"))
