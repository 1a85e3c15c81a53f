"""Machine pools: machines of one kind and one set of roles."""

from __future__ import annotations

from herder.api.capi.crds.schema import Schema, int32, plain_list, record, rule, string, string_map
from herder.api.rke.schema.pieces import (
    CREDENTIAL,
    DURATION,
    FLAG,
    INT_OR_SHARE,
    PLAIN,
    REFERENCE,
    TEXT,
    nullable,
)

MOST_POOLS = 1000
SHORTEST_HOSTNAME, LONGEST_HOSTNAME = 10, 63

HOSTNAME_LENGTH: Schema = {
    "type": "integer",
    "minimum": SHORTEST_HOSTNAME,
    "maximum": LONGEST_HOSTNAME,
    "description": "The most characters that a host name of the pool has.",
}

_TAINTS = nullable(
    plain_list(
        record(
            {
                "key!": PLAIN,
                "value": PLAIN,
                "effect!": string(enum=["NoSchedule", "PreferNoSchedule", "NoExecute"]),
                "timeAdded": {"type": "string", "format": "date-time"},
            }
        )
    )
)
_LABELS = nullable(string_map())

USERDATA = nullable(record({"inlineUserdata": PLAIN}, "cloud-config, for infrastructure of other providers alone."))


def _positive_for(role: str) -> Schema:
    field = role[0].lower() + role[1:]
    return rule(
        f"!has(self.{field}) || !self.{field} || !has(self.autoscalingMinSize) || self.autoscalingMinSize > 0",
        f"AutoscalingMinSize must be greater than 0 when {role} is true",
    )


_RULES = [
    _positive_for("ControlPlaneRole"),
    _positive_for("EtcdRole"),
    rule(
        "!has(self.autoscalingMaxSize) || !has(self.autoscalingMinSize)"
        " || self.autoscalingMinSize <= self.autoscalingMaxSize",
        "AutoscalingMinSize must be less than or equal to AutoscalingMaxSize when both are non-nil",
    ),
    rule(
        "has(self.autoscalingMinSize) == has(self.autoscalingMaxSize)",
        "AutoscalingMinSize and AutoscalingMaxSize must both be set if enabling cluster-autoscaling",
    ),
]

POOL = record(
    {
        "name!": string(min=1),
        "displayName": TEXT,
        "machineConfigRef!": nullable(REFERENCE | {"description": "What the pool's machines are made from."}),
        "etcdRole": FLAG,
        "controlPlaneRole": FLAG,
        "workerRole": FLAG,
        "quantity": nullable(int32("How many machines; one, where nothing is said.", min=0)),
        "paused": FLAG,
        "drainBeforeDelete": FLAG,
        "drainBeforeDeleteTimeout": DURATION,
        "labels": _LABELS,
        "taints": _TAINTS,
        "cloudCredentialSecretName": CREDENTIAL,
        "rollingUpdate": nullable(record({"maxUnavailable": INT_OR_SHARE, "maxSurge": INT_OR_SHARE})),
        "machineDeploymentLabels": _LABELS,
        "machineDeploymentAnnotations": _LABELS,
        "autoscalingMinSize": nullable(int32()),
        "autoscalingMaxSize": nullable(int32()),
        "nodeStartupTimeout": DURATION,
        "unhealthyNodeTimeout": DURATION,
        "maxUnhealthy": nullable(string("A number, or a share such as 40%.", pattern=r"^([0-9]+%?)?$")),
        "unhealthyRange": nullable(string("Such as [1-3].", pattern=r"^(\[[0-9]+-[0-9]+\])?$")),
        "machineOS": nullable(string(enum=["", "linux", "windows"])),
        "hostnameLengthLimit": HOSTNAME_LENGTH,
        "dynamicSchemaSpec": nullable(string("The driver's fields when the pool was made; filled in by itself.")),
        "userdata": USERDATA,
    }
) | {"x-kubernetes-validations": _RULES}
