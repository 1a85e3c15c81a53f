"""Schema of machine pools: machines with the same configuration and roles."""

from __future__ import annotations

from herder.api.capi.crds.schema import Schema, int32, plain_list, record, rule, string, string_map
from herder.api.rke.schema.pieces import (
    CREDENTIAL,
    DURATION,
    FLAG,
    INT_OR_PERCENT,
    PLAIN,
    REFERENCE,
    TEXT,
    nullable,
)

MAX_POOLS = 1000
MIN_HOSTNAME, MAX_HOSTNAME = 10, 63

HOSTNAME_LENGTH: Schema = {
    "type": "integer",
    "minimum": MIN_HOSTNAME,
    "maximum": MAX_HOSTNAME,
    "description": "Maximum length of host names in the pool.",
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

USERDATA = nullable(record({"inlineUserdata": PLAIN}, "cloud-config; only for infrastructure of other providers."))


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
        "machineConfigRef!": nullable(REFERENCE | {"description": "Machine config object of the pool's node driver."}),
        "etcdRole": FLAG,
        "controlPlaneRole": FLAG,
        "workerRole": FLAG,
        "quantity": nullable(int32("Number of machines; defaults to one.", min=0)),
        "paused": FLAG,
        "drainBeforeDelete": FLAG,
        "drainBeforeDeleteTimeout": DURATION,
        "labels": _LABELS,
        "taints": _TAINTS,
        "cloudCredentialSecretName": CREDENTIAL,
        "rollingUpdate": nullable(record({"maxUnavailable": INT_OR_PERCENT, "maxSurge": INT_OR_PERCENT})),
        "machineDeploymentLabels": _LABELS,
        "machineDeploymentAnnotations": _LABELS,
        "autoscalingMinSize": nullable(int32()),
        "autoscalingMaxSize": nullable(int32()),
        "nodeStartupTimeout": DURATION,
        "unhealthyNodeTimeout": DURATION,
        "maxUnhealthy": nullable(string("A number or a percentage such as 40%.", pattern=r"^([0-9]+%?)?$")),
        "unhealthyRange": nullable(string("A range such as [1-3].", pattern=r"^(\[[0-9]+-[0-9]+\])?$")),
        "machineOS": nullable(string(enum=["", "linux", "windows"])),
        "hostnameLengthLimit": HOSTNAME_LENGTH,
        "dynamicSchemaSpec": nullable(string("Schema of the driver when the pool was created; set by the manager.")),
        "userdata": USERDATA,
    }
) | {"x-kubernetes-validations": _RULES}
