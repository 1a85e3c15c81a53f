"""Schema of the Deployment customization of cluster agents."""

from __future__ import annotations

from herder.api.capi.crds.pieces import REQUIREMENT, SELECTOR
from herder.api.capi.crds.schema import (
    INT_OR_STRING,
    Schema,
    atomic_list,
    int32,
    map_list,
    plain_list,
    record,
    string,
    with_description,
)
from herder.api.rke.schema.pieces import COUNT_OR_PERCENT, PLAIN, integer, nullable, number

# --- scheduling -----------------------------------------------------------------------------------------------------

_NODE_TERM = record(
    {
        "matchExpressions": atomic_list(REQUIREMENT, "Requirements for labels of the Node."),
        "matchFields": atomic_list(REQUIREMENT, "Requirements for fields of the Node, such as metadata.name."),
    },
    "Requirements that a Node must all meet.",
    atomic=True,
)
_POD_TERM = record(
    {
        "labelSelector": with_description(SELECTOR, "Pods to be near to, or away from."),
        "matchLabelKeys": atomic_list(PLAIN, "Label keys whose values must equal those of the agent's pod."),
        "mismatchLabelKeys": atomic_list(PLAIN, "Label keys whose values must differ from those of the agent's pod."),
        "namespaceSelector": with_description(SELECTOR, "Namespaces of these pods, by label."),
        "namespaces": atomic_list(PLAIN, "Namespaces of these pods, by name."),
        "topologyKey!": string("Node label; Nodes with the same value are one place."),
    },
    "Pods, and the places in which they count.",
)
_WEIGHT = int32("Importance of the preference, from 1 to 100.")
_REQUIRED, _PREFERRED = (f"{how}DuringSchedulingIgnoredDuringExecution" for how in ("required", "preferred"))
_NODE_AFFINITY = record(
    {
        _REQUIRED: record(
            {"nodeSelectorTerms!": atomic_list(_NODE_TERM, "Alternatives; a Node must match one of them.")},
            "Nodes on which the pod can run.",
            atomic=True,
        ),
        _PREFERRED: atomic_list(
            record({"weight!": _WEIGHT, "preference!": _NODE_TERM}), "Nodes on which the pod runs if possible."
        ),
    },
    "Nodes to run on.",
)


def _pod_affinity(description: str) -> Schema:
    return record(
        {
            _REQUIRED: atomic_list(_POD_TERM, "Terms that must be met to schedule the pod."),
            _PREFERRED: atomic_list(
                record({"weight!": _WEIGHT, "podAffinityTerm!": _POD_TERM}), "Terms that are met if possible."
            ),
        },
        description,
    )


_AFFINITY = record(
    {
        "nodeAffinity": _NODE_AFFINITY,
        "podAffinity": _pod_affinity("Pods to run near to."),
        "podAntiAffinity": _pod_affinity("Pods to run away from."),
    },
    "Affinity of the pods, in place of the default.",
)
_TOLERATION = record(
    {
        "key": string("Taint key; empty with operator Exists tolerates all taints."),
        "operator": string("Equal or Exists; defaults to Equal."),
        "value": string("Taint value, for operator Equal."),
        "effect": string("Taint effect; empty is any effect."),
        "tolerationSeconds": number("How long a NoExecute taint is tolerated; unlimited if unset."),
    }
)

# --- resources ------------------------------------------------------------------------------------------------------

_NUMBER = r"(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
_QUANTITY: Schema = INT_OR_STRING | {"pattern": rf"^(\+|-)?{_NUMBER}(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?{_NUMBER}))?$"}


def _quantities(description: str) -> Schema:
    return {"type": "object", "additionalProperties": _QUANTITY, "description": description}


_CLAIM = record(
    {"name!": string("Name of a resource claim of the pod."), "request": string("Request of the claim; all if empty.")}
)
_RESOURCES = record(
    {
        "limits": _quantities("Most resources that the container can use."),
        "requests": _quantities("Resources that are reserved for the container."),
        "claims": map_list(["name"], _CLAIM, "Resource claims that the container uses."),
    },
    "Resources of the containers, in place of the default.",
)

_BUDGET = record(
    {
        "minAvailable": with_description(COUNT_OR_PERCENT, "Pods that must stay available: a number or a percentage."),
        "maxUnavailable": with_description(COUNT_OR_PERCENT, "Pods that may be unavailable: a number or a percentage."),
    },
    "PodDisruptionBudget of the Deployment.",
)
_PRIORITY = record(
    {
        "value": integer("Priority of the pods.") | {"minimum": -1_000_000_000, "maximum": 1_000_000_000},
        "preemptionPolicy": nullable(
            string("Whether the pods can preempt others.", enum=["", "PreemptLowerPriority", "Never"])
        ),
    },
    "PriorityClass of the pods.",
)

_PLACEMENT = {
    "appendTolerations": nullable(plain_list(_TOLERATION, "Tolerations in addition to the default ones.")),
    "overrideAffinity": nullable(_AFFINITY),
    "overrideResourceRequirements": nullable(_RESOURCES),
}


def customization(description: str) -> Schema:
    scheduling = {"priorityClass": nullable(_PRIORITY), "podDisruptionBudget": nullable(_BUDGET)}
    parts = {**_PLACEMENT, "schedulingCustomization": nullable(record(scheduling, "Priority and disruption budget."))}
    return nullable(record(parts, description))


WEBHOOK_CUSTOMIZATION = nullable(
    record(
        {
            **_PLACEMENT,
            "podDisruptionBudget": nullable(_BUDGET),
            "replicaCount": int32("Number of pods.", min=1),
        },
        "Customization of Rancher's webhook. Values are refused, because Herder does not deploy it.",
    )
)
