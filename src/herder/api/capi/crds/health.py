"""CRDs of MachineHealthCheck and MachineDrainRule."""

from __future__ import annotations

from herder.api.capi import kinds
from herder.api.capi.crds import pieces
from herder.api.capi.crds.definition import AGE, CLUSTER, PAUSED, STATUS, column, count, definition
from herder.api.capi.crds.labels import CORE_LABELS
from herder.api.capi.crds.schema import (
    INT_OR_STRING,
    Schema,
    atomic_list,
    int32,
    record,
    rule,
    string,
)

# These depend on the health check's own result, or are remediation conditions.
_NOT_CHECKED = ("Ready", "Available", "HealthCheckSucceeded", "OwnerRemediated", "ExternallyRemediated")

CHECKS = record(
    {
        "nodeStartupTimeoutSeconds": int32(
            "Seconds a machine may take to become a Node; 0 disables the timeout.", min=0
        ),
        "unhealthyNodeConditions": atomic_list(
            record({"type!": string(min=1), "status!": string(min=1), "timeoutSeconds!": pieces.SECONDS}),
            min=1,
            max=100,
        ),
        "unhealthyMachineConditions": atomic_list(
            record(
                {
                    "type!": string(
                        min=1,
                        max=316,
                        pattern=pieces.CONDITION_TYPE,
                        rules=[
                            rule(
                                f"!(self in [{','.join(repr(name) for name in _NOT_CHECKED)}])",
                                f"type must not be one of: {', '.join(_NOT_CHECKED)}",
                            )
                        ],
                    ),
                    "status!": string(enum=["True", "False", "Unknown"]),
                    "timeoutSeconds!": pieces.SECONDS,
                }
            ),
            min=1,
            max=100,
        ),
    },
    "A Machine is unhealthy if one of these conditions persists for its timeout.",
    filled=True,
)

REMEDIATION: dict[str, Schema] = {
    "triggerIf": record(
        {
            "unhealthyLessThanOrEqualTo": INT_OR_STRING,
            "unhealthyInRange": string("A range such as [3-5].", min=1, max=32, pattern=r"^\[[0-9]+-[0-9]+\]$"),
        },
        "Remediation stops while more Machines than this are unhealthy.",
        filled=True,
    ),
    "templateRef": record(
        {
            "apiVersion!": string(min=1, max=317, pattern=pieces.API_VERSION),
            "kind!": pieces.KIND,
            "name!": pieces.OBJECT_NAME,
        },
        "Template of the object that remediates instead of the Machine's owner.",
    ),
}

_NON_NEGATIVE = int32(min=0)

MACHINE_HEALTH_CHECK = definition(
    kinds.MACHINE_HEALTH_CHECK,
    "Detects unhealthy Machines and remediates them.",
    schema={
        "spec!": record(
            {
                "clusterName!": pieces.CLUSTER_NAME,
                "selector!": pieces.SELECTOR,
                "checks": CHECKS,
                "remediation": record(REMEDIATION, filled=True),
            }
        ),
        "status": pieces.status(
            {
                "expectedMachines": _NON_NEGATIVE,
                "currentHealthy": _NON_NEGATIVE,
                "remediationsAllowed": _NON_NEGATIVE,
                "targets": atomic_list(string(min=1, max=253), "Names of the selected Machines.", max=10000),
                "deprecated": pieces.deprecated(),
            }
        ),
    },
    subresources=STATUS,
    short=["mhc", "mhcs"],
    labels=CORE_LABELS,
    columns=[
        CLUSTER,
        count("Replicas", ".status.expectedMachines"),
        count("Healthy", ".status.currentHealthy"),
        PAUSED,
        AGE,
    ],
)


def _selections(name: str, properties: dict[str, Schema]) -> Schema:
    unique = rule("self.all(x, self.exists_one(y, x == y))", f"entries in {name} must be unique")
    return atomic_list(
        record(properties, filled=True),
        "Matches if any entry matches; matches all if empty.",
        min=1,
        max=32,
        rules=[unique],
    )


MACHINE_DRAIN_RULE = definition(
    kinds.MACHINE_DRAIN_RULE,
    "How to treat pods on a Node that is drained before its Machine is deleted.",
    schema={
        "spec!": record(
            {
                "drain!": record(
                    {
                        "behavior!": string(enum=["Drain", "Skip", "WaitCompleted"]),
                        "order": int32(
                            "Pods with a lower order are evicted, and terminated, before those with a higher order."
                        ),
                    }
                ),
                "machines": _selections("machines", {"selector": pieces.SELECTOR, "clusterSelector": pieces.SELECTOR}),
                "pods": _selections("pods", {"selector": pieces.SELECTOR, "namespaceSelector": pieces.SELECTOR}),
            }
        )
    },
    metadata_required=True,
    labels=CORE_LABELS,
    columns=[column("Behavior", ".spec.drain.behavior"), column("Order", ".spec.drain.order"), AGE],
)
