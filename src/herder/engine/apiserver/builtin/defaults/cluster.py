"""Defaults of RBAC, networking, storage, admission and flow control."""

from __future__ import annotations

from herder.engine.apiserver.builtin.defaults.fill import Fill, fill_absent, fill_empty, filling
from herder.engine.meta.kinds import Object

_RBAC = "rbac.authorization.k8s.io"


def role_binding(obj: Object) -> None:
    fill_empty(obj.setdefault("roleRef", {}), apiGroup=_RBAC)


def subject(obj: Object) -> None:
    if obj.get("kind") in {"User", "Group"}:
        fill_empty(obj, apiGroup=_RBAC)


def network_policy(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    fill_empty(spec, policyTypes=["Ingress", "Egress"] if spec.get("egress") else ["Ingress"])


def ingress_class(obj: Object) -> None:
    parameters = obj.get("spec", {}).get("parameters")
    if parameters is not None:
        fill_absent(parameters, scope="Cluster")


def csi_driver(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    fill_absent(
        spec,
        attachRequired=True,
        podInfoOnMount=False,
        storageCapacity=False,
        fsGroupPolicy="ReadWriteOnceWithFSType",
        requiresRepublish=False,
        seLinuxMount=False,
    )
    fill_empty(spec, volumeLifecycleModes=["Persistent"])


def validating_webhook(obj: Object) -> None:
    fill_absent(
        obj, failurePolicy="Fail", matchPolicy="Equivalent", namespaceSelector={}, objectSelector={}, timeoutSeconds=10
    )


def mutating_webhook(obj: Object) -> None:
    validating_webhook(obj)
    fill_absent(obj, reinvocationPolicy="Never")


def match_resources(obj: Object) -> None:
    fill_absent(obj, matchPolicy="Equivalent", namespaceSelector={}, objectSelector={})


def device_request(obj: Object) -> None:
    fill_empty(obj, allocationMode="ExactCount")
    if obj["allocationMode"] == "ExactCount":
        fill_empty(obj, count=1)


BY_STRUCT: dict[str, Fill] = {
    "rbac.v1.ClusterRoleBinding": role_binding,
    "rbac.v1.RoleBinding": role_binding,
    "rbac.v1.Subject": subject,
    "networking.v1.NetworkPolicy": network_policy,
    "networking.v1.NetworkPolicyPort": filling(fill_absent, protocol="TCP"),
    "networking.v1.IngressClass": ingress_class,
    "discovery.v1.EndpointPort": filling(fill_absent, name="", protocol="TCP"),
    "scheduling.v1.PriorityClass": filling(fill_absent, preemptionPolicy="PreemptLowerPriority"),
    "storage.v1.StorageClass": filling(fill_absent, reclaimPolicy="Delete", volumeBindingMode="Immediate"),
    "storage.v1.CSIDriver": csi_driver,
    "admissionregistration.v1.ValidatingWebhook": validating_webhook,
    "admissionregistration.v1.MutatingWebhook": mutating_webhook,
    "admissionregistration.v1.Rule": filling(fill_absent, scope="*"),
    "admissionregistration.v1.ServiceReference": filling(fill_absent, port=443),
    "admissionregistration.v1.ValidatingAdmissionPolicySpec": filling(fill_absent, failurePolicy="Fail"),
    "admissionregistration.v1.MutatingAdmissionPolicySpec": filling(fill_absent, failurePolicy="Fail"),
    "admissionregistration.v1.MatchResources": match_resources,
    "apiregistration.v1.ServiceReference": filling(fill_absent, port=443),
    "flowcontrol.v1.FlowSchemaSpec": filling(fill_empty, matchingPrecedence=1000),
    "flowcontrol.v1.ExemptPriorityLevelConfiguration": filling(
        fill_absent, nominalConcurrencyShares=0, lendablePercent=0
    ),
    "flowcontrol.v1.LimitedPriorityLevelConfiguration": filling(
        fill_absent, nominalConcurrencyShares=30, lendablePercent=0
    ),
    "flowcontrol.v1.QueuingConfiguration": filling(fill_empty, handSize=8, queues=64, queueLengthLimit=50),
    "resource.v1.ExactDeviceRequest": device_request,
    "resource.v1.DeviceSubRequest": device_request,
    "resource.v1.DeviceToleration": filling(fill_empty, operator="Equal"),
}
