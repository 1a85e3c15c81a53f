"""Schema of the Deployment customization of cluster agents."""

from __future__ import annotations

from herder.api.capi.crds.pieces import SELECTOR
from herder.api.capi.crds.schema import INT_OR_STRING, Schema, atomic_list, int32, map_list, plain_list, record, string
from herder.api.rke.schema.pieces import COUNT_OR_PERCENT, INTEGER, NUMBER, PLAIN, nullable

# --- scheduling -----------------------------------------------------------------------------------------------------

_REQUIREMENTS = atomic_list(record({"key!": PLAIN, "operator!": PLAIN, "values": atomic_list(PLAIN)}))
_NODE_TERM = record({"matchExpressions": _REQUIREMENTS, "matchFields": _REQUIREMENTS}, atomic=True)
_POD_TERM = record(
    {
        "labelSelector": SELECTOR,
        "matchLabelKeys": atomic_list(PLAIN),
        "mismatchLabelKeys": atomic_list(PLAIN),
        "namespaceSelector": SELECTOR,
        "namespaces": atomic_list(PLAIN),
        "topologyKey!": PLAIN,
    }
)
_REQUIRED, _PREFERRED = (f"{how}DuringSchedulingIgnoredDuringExecution" for how in ("required", "preferred"))
_NODE_AFFINITY = record(
    {
        _REQUIRED: record({"nodeSelectorTerms!": atomic_list(_NODE_TERM)}, atomic=True),
        _PREFERRED: atomic_list(record({"weight!": int32(), "preference!": _NODE_TERM})),
    }
)
_POD_AFFINITY = record(
    {
        _REQUIRED: atomic_list(_POD_TERM),
        _PREFERRED: atomic_list(record({"weight!": int32(), "podAffinityTerm!": _POD_TERM})),
    }
)
_AFFINITY = record({"nodeAffinity": _NODE_AFFINITY, "podAffinity": _POD_AFFINITY, "podAntiAffinity": _POD_AFFINITY})
_TOLERATION = record({"key": PLAIN, "operator": PLAIN, "value": PLAIN, "effect": PLAIN, "tolerationSeconds": NUMBER})

# --- resources ------------------------------------------------------------------------------------------------------

_NUMBER = r"(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
_QUANTITY: Schema = INT_OR_STRING | {"pattern": rf"^(\+|-)?{_NUMBER}(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?{_NUMBER}))?$"}
_QUANTITIES: Schema = {"type": "object", "additionalProperties": _QUANTITY}
_RESOURCES = record(
    {
        "limits": _QUANTITIES,
        "requests": _QUANTITIES,
        "claims": map_list(["name"], record({"name!": PLAIN, "request": PLAIN})),
    }
)

_BUDGET = record({"minAvailable": COUNT_OR_PERCENT, "maxUnavailable": COUNT_OR_PERCENT})
_PRIORITY = record(
    {
        "value": INTEGER | {"minimum": -1_000_000_000, "maximum": 1_000_000_000},
        "preemptionPolicy": nullable(string(enum=["", "PreemptLowerPriority", "Never"])),
    }
)

_PLACEMENT = {
    "appendTolerations": nullable(plain_list(_TOLERATION)),
    "overrideAffinity": nullable(_AFFINITY),
    "overrideResourceRequirements": nullable(_RESOURCES),
}

CUSTOMIZATION = nullable(
    record(
        {
            **_PLACEMENT,
            "schedulingCustomization": nullable(
                record({"priorityClass": nullable(_PRIORITY), "podDisruptionBudget": nullable(_BUDGET)})
            ),
        }
    )
)
WEBHOOK_CUSTOMIZATION = nullable(
    record({**_PLACEMENT, "podDisruptionBudget": nullable(_BUDGET), "replicaCount": int32(min=1)})
)
