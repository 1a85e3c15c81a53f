"""Defaulting and validation of Cluster API objects: pure functions, one module per kind.

The embedded API server calls them in process, kube-apiserver through webhooks. Defaulting runs before schema
validation, so `default` must accept any input; `validate` runs after it and may rely on types. Schema rules (patterns,
enums, CEL) are not repeated here.
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
    """Defaulting and validation of one kind. `old` is the stored object of an update, None for a create. Neither
    raises.
    """

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


def needs_admission(obj: Object, old: Object | None) -> bool:
    """Whether an admission rule may apply: not if only finalizers, owner references or the status change.

    So bookkeeping by controllers costs nothing, and an object that earlier rules admitted can always be deleted.
    """
    return old is None or any(section(obj, *path) != section(old, *path) for path in ADMITTED_FIELDS)


ADMITTED_FIELDS = (("spec",), ("metadata", "labels"), ("metadata", "annotations"))
