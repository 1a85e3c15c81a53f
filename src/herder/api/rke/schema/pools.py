"""Schema of machine pools: machines with the same configuration and roles."""

from __future__ import annotations

from herder.api.capi.crds.schema import Schema, int32, plain_list, record, rule, string, string_map, with_description
from herder.api.rke.schema.pieces import (
    CREDENTIAL,
    DURATION,
    INT_OR_PERCENT,
    REFERENCE,
    flag,
    nullable,
    text,
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
                "key!": string("Key of the taint."),
                "value": string("Value of the taint."),
                "effect!": string("Effect on pods.", enum=["NoSchedule", "PreferNoSchedule", "NoExecute"]),
                "timeAdded": {"type": "string", "format": "date-time", "description": "When the taint was added."},
            }
        ),
        "Taints of the Nodes; changes apply to new machines.",
    )
)

USERDATA = nullable(
    record(
        {"inlineUserdata": string("The cloud-config itself, to which Herder adds its own commands.")},
        "User data in cloud-config format; only for infrastructure of other providers.",
    )
)


def _labels(description: str) -> Schema:
    return nullable(string_map(description))


def _duration(description: str) -> Schema:
    return with_description(DURATION, f"{description} A duration such as 90s, 10m or 1h30m.")


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
        "name!": string("Name of the pool, unique in the cluster.", min=1),
        "displayName": text("Name of the pool in user interfaces."),
        "machineConfigRef!": nullable(REFERENCE | {"description": "Machine config object of the pool's node driver."}),
        "etcdRole": flag("Whether the machines run etcd."),
        "controlPlaneRole": flag("Whether the machines run the control plane of Kubernetes."),
        "workerRole": flag("Whether the machines run workloads."),
        "quantity": nullable(int32("Number of machines; defaults to one.", min=0)),
        "paused": flag("Whether machines are neither created, deleted nor replaced."),
        "drainBeforeDelete": flag("Whether the Node of a machine is drained before the machine is deleted."),
        "drainBeforeDeleteTimeout": _duration("How long this drain may take; unlimited if unset."),
        "labels": _labels("Labels of the Machines and Nodes."),
        "taints": _TAINTS,
        "cloudCredentialSecretName": CREDENTIAL,
        "rollingUpdate": nullable(
            record(
                {
                    "maxUnavailable": with_description(INT_OR_PERCENT, "Machines that may be missing meanwhile."),
                    "maxSurge": with_description(INT_OR_PERCENT, "Machines that may exist in addition meanwhile."),
                },
                "How machines are replaced when their configuration changes.",
            )
        ),
        "machineDeploymentLabels": _labels("Labels of the MachineDeployment."),
        "machineDeploymentAnnotations": _labels("Annotations of the MachineDeployment."),
        "autoscalingMinSize": nullable(int32("Fewest machines that the cluster-autoscaler may leave.")),
        "autoscalingMaxSize": nullable(int32("Most machines that the cluster-autoscaler may create.")),
        "nodeStartupTimeout": _duration("With unhealthyNodeTimeout: how long a new machine may take to join."),
        "unhealthyNodeTimeout": _duration(
            "How long a Node may be lost or not ready before its machine is replaced. Unset or 0: lost machines are "
            "reported, not replaced."
        ),
        "maxUnhealthy": nullable(
            string(
                "Replace machines only while at most so many are unhealthy: a number, or a percentage such as 40%.",
                pattern=r"^([0-9]+%?)?$",
            )
        ),
        "unhealthyRange": nullable(
            string(
                "Replace machines only while the number of unhealthy ones is in this range, such as [1-3].",
                pattern=r"^(\[[0-9]+-[0-9]+\])?$",
            )
        ),
        "machineOS": nullable(string("Operating system; defaults to linux.", enum=["", "linux", "windows"])),
        "hostnameLengthLimit": HOSTNAME_LENGTH,
        "dynamicSchemaSpec": nullable(string("Schema of the driver when the pool was created; set by the manager.")),
        "userdata": USERDATA,
    }
) | {"x-kubernetes-validations": _RULES}
