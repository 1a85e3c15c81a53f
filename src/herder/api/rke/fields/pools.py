"""Fields of machine pools."""

from __future__ import annotations

from herder.api.rke.distributions import RKE2
from herder.api.rke.fields.configuration import reference
from herder.api.rke.fields.rows import done, done_on, without_effect
from herder.api.rke.names import LINUX

_POOL = "spec.rkeConfig.machinePools[]"
_AUTOSCALER = "deploy cluster-autoscaler yourself; the condition ClusterAutoscalerDeploymentReady reports this"
_HEALTH = "only with unhealthyNodeTimeout"

ROWS = (
    done("spec.rkeConfig.machinePoolDefaults.hostnameLengthLimit"),
    done(f"{_POOL}.autoscalingMaxSize", _AUTOSCALER),
    done(f"{_POOL}.autoscalingMinSize", _AUTOSCALER),
    done(f"{_POOL}.cloudCredentialSecretName"),
    done(f"{_POOL}.controlPlaneRole"),
    without_effect(f"{_POOL}.displayName", "deprecated, and unused in Rancher too"),
    done(f"{_POOL}.drainBeforeDelete"),
    done(f"{_POOL}.drainBeforeDeleteTimeout"),
    done(f"{_POOL}.dynamicSchemaSpec"),
    done(f"{_POOL}.etcdRole"),
    done(f"{_POOL}.hostnameLengthLimit"),
    done(f"{_POOL}.labels"),
    *reference(f"{_POOL}.machineConfigRef"),
    done(f"{_POOL}.machineDeploymentAnnotations"),
    done(f"{_POOL}.machineDeploymentLabels"),
    done_on(f"{_POOL}.machineOS", RKE2, reason="only RKE2 has Windows nodes; use linux", off=(LINUX,)),
    done(f"{_POOL}.maxUnhealthy", _HEALTH),
    done(f"{_POOL}.name"),
    done(f"{_POOL}.nodeStartupTimeout", _HEALTH),
    done(f"{_POOL}.paused"),
    done(f"{_POOL}.quantity"),
    done(f"{_POOL}.rollingUpdate.maxSurge"),
    done(f"{_POOL}.rollingUpdate.maxUnavailable"),
    *(done(f"{_POOL}.taints[].{part}") for part in ("effect", "key", "value")),
    done(f"{_POOL}.taints[].timeAdded", "recorded for the machine; its kubelet sets the time of the Node's taint"),
    done(f"{_POOL}.unhealthyNodeTimeout"),
    done(f"{_POOL}.unhealthyRange", _HEALTH),
    done(f"{_POOL}.userdata.inlineUserdata", "only with infrastructure of another provider"),
    done(f"{_POOL}.workerRole"),
)
