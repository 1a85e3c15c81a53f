"""Schemas shared by several Cluster API kinds: names, references, conditions, Machine specs."""

from __future__ import annotations

from collections.abc import Mapping

from herder.api.capi.crds.schema import (
    BOOLEAN,
    INT_OR_STRING,
    TIME,
    Schema,
    atomic_list,
    int32,
    int64,
    map_list,
    plain_list,
    record,
    string,
    string_map,
)

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_WORD = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
SUBDOMAIN = f"^{_SUBDOMAIN}$"
LABEL = f"^{_LABEL}$"
API_VERSION = rf"^{_SUBDOMAIN}\/[a-z]([-a-z0-9]*[a-z0-9])?$"
CONDITION_TYPE = f"^({_SUBDOMAIN}/)?({_WORD})$"
TAINT_KEY = rf"^({_SUBDOMAIN}\/)?{_WORD}$"
TAINT_VALUE = f"^({_WORD})?$"

PLAIN = string()
COUNT = int32()
SECONDS = int32(min=0)
CLUSTER_NAME = string("Name of the Cluster that this object belongs to.", min=1, max=63)
VERSION = string("Kubernetes version.", min=1, max=256)
FAILURE_DOMAIN = string("Failure domain of the Cluster to place the machine in.", min=1, max=256)
CONDITION_TYPE_NAME = string(min=1, max=316, pattern=CONDITION_TYPE)
KIND = string(min=1, max=63, pattern="^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$")
OBJECT_NAME = string(min=1, max=253, pattern=SUBDOMAIN)

REFERENCE = record(
    {"apiGroup!": string(min=1, max=253, pattern=SUBDOMAIN), "kind!": KIND, "name!": OBJECT_NAME},
    "Reference to a provider's object in the same namespace.",
)

REQUIREMENT = record(
    {
        "key!": string("Label key that the requirement is about."),
        "operator!": string("In, NotIn, Exists or DoesNotExist; for Nodes also Gt and Lt."),
        "values": atomic_list(PLAIN, "Values to compare with; empty for Exists and DoesNotExist."),
    }
)
SELECTOR = record(
    {
        "matchLabels": string_map("Labels that an object must have with these values."),
        "matchExpressions": atomic_list(REQUIREMENT, "Requirements that an object's labels must all meet."),
    },
    "Label selector.",
    atomic=True,
)

METADATA = record(
    {
        "labels": string_map("Labels of the created objects."),
        "annotations": string_map("Annotations of the created objects."),
    },
    "Metadata of the created objects.",
    filled=True,
)

GATES = map_list(
    ["conditionType"],
    record({"conditionType!": CONDITION_TYPE_NAME, "polarity": string(enum=["Positive", "Negative"])}),
    "Additional conditions that must be met.",
    min=1,
    max=32,
)

TAINTS = map_list(
    ["key", "effect"],
    record(
        {
            "key!": string(min=1, max=317, pattern=TAINT_KEY),
            "value": string(min=1, max=63, pattern=TAINT_VALUE),
            "effect!": string(enum=["NoSchedule", "PreferNoSchedule", "NoExecute"]),
            "propagation!": string(
                "Always keeps the taint on the Node; OnInitialization sets it once when the Node joins.",
                enum=["Always", "OnInitialization"],
            ),
        }
    ),
    "Taints of the Node.",
    min=1,
    max=64,
)

_DELETION_TIMEOUTS = {
    "nodeDrainTimeoutSeconds": int32("Seconds that draining may take; 0 disables the timeout.", min=0),
    "nodeVolumeDetachTimeoutSeconds": int32("Seconds that detaching volumes may take; 0 disables the timeout.", min=0),
    "nodeDeletionTimeoutSeconds": int32(
        "Seconds for which deleting the Node is retried; 0 disables the timeout.", min=0
    ),
}
_DELETION_ORDER = {
    "order": string("Which Machines are deleted first when scaling down.", enum=["Random", "Newest", "Oldest"])
}
MACHINE_DELETION = record(_DELETION_TIMEOUTS, filled=True)
SET_DELETION = record(_DELETION_ORDER, filled=True)
CLASS_DELETION = record(_DELETION_TIMEOUTS | _DELETION_ORDER, filled=True)

NAMING = record(
    {"template": string("A Go template with .cluster.name, .machineSet.name and .random.", min=1, max=256)}, filled=True
)

AFTER = {"after": TIME}
ROLLOUT = record(
    AFTER
    | {
        "strategy": record(
            {
                "type!": string(enum=["RollingUpdate", "OnDelete"]),
                "rollingUpdate": record({"maxSurge": INT_OR_STRING, "maxUnavailable": INT_OR_STRING}, filled=True),
            },
            filled=True,
        )
    },
    "How Machines are replaced; all Machines older than `after` are replaced.",
    filled=True,
)

MACHINE_SPEC = record(
    {
        "clusterName!": CLUSTER_NAME,
        "bootstrap!": record(
            {"configRef": REFERENCE, "dataSecretName": string(min=0, max=253)},
            "Bootstrap data: a bootstrap provider's object, or an existing Secret.",
        ),
        "infrastructureRef!": REFERENCE,
        "version": VERSION,
        "providerID": string(
            "Identifier of the machine at its provider; equal to the Node's providerID.", min=1, max=512
        ),
        "failureDomain": FAILURE_DOMAIN,
        "minReadySeconds": int32("Seconds a Machine must be Ready before it is Available.", min=0),
        "readinessGates": GATES,
        "deletion": MACHINE_DELETION,
        "taints": TAINTS,
    }
)
MACHINE_TEMPLATE = record({"metadata": METADATA, "spec!": MACHINE_SPEC})

CONDITIONS = map_list(
    ["type"],
    record(
        {
            "type!": string("Name of the condition.", max=316, pattern=CONDITION_TYPE),
            "status!": string("Whether the condition holds.", enum=["True", "False", "Unknown"]),
            "reason!": string(
                "Cause of the status, as one word for programs.",
                min=1,
                max=1024,
                pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
            ),
            "message!": string("Cause of the status, as text for users.", max=32768),
            "lastTransitionTime!": TIME | {"description": "When the status changed last."},
            "observedGeneration": int64("Generation of the spec that the condition is about.", min=0),
        }
    ),
    "What is known about the state of the object.",
    max=32,
)
OBSERVED_GENERATION = int64(min=1)
REPLICA_COUNTS = {
    "replicas": COUNT,
    "readyReplicas": int32("Machines whose Ready condition is True."),
    "availableReplicas": int32("Machines whose Available condition is True."),
    "upToDateReplicas": int32("Machines whose UpToDate condition is True."),
}
_VERSION_COUNT = record({"version!": VERSION, "replicas": int32(min=1)})
VERSIONS_IN_USE = map_list(
    ["version"], _VERSION_COUNT, "Kubernetes versions of the Machines, oldest first.", min=1, max=100
)
CLUSTER_VERSIONS_IN_USE = atomic_list(_VERSION_COUNT, min=1, max=32)
SELECTOR_TEXT = string("The label selector in string form, for the scale subresource.", min=1, max=4096)
INITIALIZED_MACHINE = record(
    {"infrastructureProvisioned": BOOLEAN, "bootstrapDataSecretCreated": BOOLEAN},
    "Initialization steps that have completed; they are never reset.",
    filled=True,
)

FAILURE = {"failureReason": PLAIN, "failureMessage": string(min=1, max=10240)}
_LEGACY_CONDITIONS = plain_list(
    record(
        {
            "type!": string(min=1, max=256),
            "status!": PLAIN,
            "severity": string(max=32),
            "reason": string(min=1, max=256),
            "message": string(min=1, max=10240),
            "lastTransitionTime!": TIME,
        }
    )
)


def deprecated(fields: Mapping[str, Schema] | None = None) -> Schema:
    """Return the schema of status.deprecated, which has the v1beta1 status for clients that still read it."""
    return record({"v1beta1": record({"conditions": _LEGACY_CONDITIONS, **(fields or {})})})


def status(fields: Mapping[str, Schema]) -> Schema:
    """Return the schema of a status: observedGeneration, conditions and these fields."""
    return record({"observedGeneration": OBSERVED_GENERATION, "conditions": CONDITIONS, **fields}, filled=True)
