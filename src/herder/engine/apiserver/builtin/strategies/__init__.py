"""The rules of each built-in kind beyond its types: names, what the server sets, what it refuses, what may change."""

from __future__ import annotations

from functools import cache

from herder.engine.apiserver.builtin.strategies import (
    admission,
    cluster,
    configuration,
    events,
    jobs,
    namespaces,
    networking,
    nodes,
    pods,
    rbac,
    services,
    workloads,
)
from herder.engine.apiserver.builtin.strategies.base import BuiltinStrategy
from herder.engine.apiserver.strategy import Strategy
from herder.engine.meta.kinds import GroupResource

_RBAC = "rbac.authorization.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"
_COUNTED = {  # kinds without rules of their own whose generation moves
    GroupResource("resource.k8s.io", "deviceclasses"),
    GroupResource("resource.k8s.io", "resourceslices"),
    GroupResource("flowcontrol.apiserver.k8s.io", "flowschemas"),
    GroupResource("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations"),
}


def _resources(*names: str) -> frozenset[GroupResource]:
    pairs = (name.partition(".") for name in names)
    return frozenset(GroupResource(group, plural) for plural, _, group in pairs)


# PUT to a missing name creates it.
_CREATED_BY_UPDATE = _resources(
    "limitranges", "events", "events.events.k8s.io", "services", "endpoints", "leases.coordination.k8s.io",
    "runtimeclasses.node.k8s.io", f"roles.{_RBAC}", f"rolebindings.{_RBAC}", f"clusterroles.{_RBAC}",
    f"clusterrolebindings.{_RBAC}",
)  # fmt: skip
# PUT without resourceVersion is refused.
_NEEDS_VERSION = _resources(
    "runtimeclasses.node.k8s.io", "poddisruptionbudgets.policy", "csidrivers.storage.k8s.io",
    "csistoragecapacities.storage.k8s.io", "volumeattachments.storage.k8s.io", "csinodes.storage.k8s.io",
    "leases.coordination.k8s.io", "apiservices.apiregistration.k8s.io", f"validatingadmissionpolicies.{_ADMISSION}",
    f"validatingadmissionpolicybindings.{_ADMISSION}", f"mutatingadmissionpolicies.{_ADMISSION}",
    f"mutatingadmissionpolicybindings.{_ADMISSION}", f"mutatingwebhookconfigurations.{_ADMISSION}",
    f"validatingwebhookconfigurations.{_ADMISSION}",
)  # fmt: skip
# Finalizers of any name are taken.
_FREE_FINALIZERS = _resources(
    "events", "events.events.k8s.io", "leases.coordination.k8s.io", "poddisruptionbudgets.policy",
    "customresourcedefinitions.apiextensions.k8s.io",
)  # fmt: skip
# An update is checked as a create would be, and as a change.
_CHECKED_AS_NEW = _resources(
    "configmaps", "secrets", "pods", "serviceaccounts", "endpoints", "limitranges", "persistentvolumeclaims",
    "jobs.batch", "ingresses.networking.k8s.io", "endpointslices.discovery.k8s.io", f"roles.{_RBAC}",
    f"rolebindings.{_RBAC}", f"clusterroles.{_RBAC}", f"clusterrolebindings.{_RBAC}",
)  # fmt: skip
# DELETE answers the object instead of a Status.
_ANSWERS_DELETED = _resources(
    "namespaces", "pods", "services", "podtemplates", "resourcequotas", "serviceaccounts", "persistentvolumes",
    "persistentvolumeclaims", "csidrivers.storage.k8s.io", "storageclasses.storage.k8s.io",
    "volumeattachments.storage.k8s.io", "csinodes.storage.k8s.io", "volumeattributesclasses.storage.k8s.io",
)  # fmt: skip


def strategy_for(resource: GroupResource, status_struct: str) -> Strategy:
    """The rules of one resource; `status_struct` is the Go struct of its status, where it has one.

    Those of CustomResourceDefinitions belong to the part that serves custom resources, which puts them in.
    """
    rules = _by_resource().get(resource) or BuiltinStrategy(generations=resource in _COUNTED, status=status_struct)
    rules.create_on_update = resource in _CREATED_BY_UPDATE
    rules.unconditional_update = resource not in _NEEDS_VERSION
    rules.standard_finalizers = resource not in _FREE_FINALIZERS
    rules.repeats_metadata_errors = resource in _CHECKED_AS_NEW
    rules.answers_deleted_object = resource in _ANSWERS_DELETED or resource.group == "resource.k8s.io"
    return rules


@cache
def _by_resource() -> dict[GroupResource, Strategy]:
    core: dict[str, Strategy] = {
        "secrets": configuration.SecretStrategy(),
        "configmaps": configuration.ConfigMapStrategy(),
        "namespaces": namespaces.NamespaceStrategy(),
        "services": services.ServiceStrategy(),
        "pods": pods.PodStrategy(),
        "podtemplates": workloads.PodTemplateStrategy(),
        "replicationcontrollers": workloads.ReplicationControllerStrategy(),
        "serviceaccounts": cluster.ServiceAccountStrategy(),
        "events": events.EventStrategy(new=False),
        "nodes": nodes.NodeStrategy(),
        "persistentvolumes": nodes.PersistentVolumeStrategy(),
        "persistentvolumeclaims": nodes.PersistentVolumeClaimStrategy(),
        "endpoints": networking.EndpointsStrategy(),
        "resourcequotas": cluster.ResourceQuotaStrategy(),
        "limitranges": cluster.LimitRangeStrategy(),
    }
    others: dict[tuple[str, str], Strategy] = {
        ("events.k8s.io", "events"): events.EventStrategy(new=True),
        ("apps", "deployments"): workloads.DeploymentStrategy(),
        ("apps", "replicasets"): workloads.ReplicaSetStrategy(),
        ("apps", "statefulsets"): workloads.StatefulSetStrategy(),
        ("apps", "daemonsets"): workloads.DaemonSetStrategy(),
        ("apps", "controllerrevisions"): workloads.ControllerRevisionStrategy(),
        ("batch", "jobs"): jobs.JobStrategy(),
        ("batch", "cronjobs"): jobs.CronJobStrategy(),
        (_RBAC, "roles"): rbac.RoleStrategy(namespaced=True),
        (_RBAC, "clusterroles"): rbac.RoleStrategy(namespaced=False),
        (_RBAC, "rolebindings"): rbac.BindingStrategy(namespaced=True),
        (_RBAC, "clusterrolebindings"): rbac.BindingStrategy(namespaced=False),
        ("coordination.k8s.io", "leases"): cluster.LeaseStrategy(),
        ("policy", "poddisruptionbudgets"): cluster.DisruptionBudgetStrategy(),
        ("scheduling.k8s.io", "priorityclasses"): cluster.PriorityClassStrategy(),
        ("storage.k8s.io", "storageclasses"): cluster.StorageClassStrategy(),
        ("apiregistration.k8s.io", "apiservices"): cluster.ApiServiceStrategy(),
        ("autoscaling", "horizontalpodautoscalers"): cluster.AutoscalerStrategy(),
        ("certificates.k8s.io", "certificatesigningrequests"): nodes.CertificateRequestStrategy(),
        ("networking.k8s.io", "ingresses"): networking.IngressStrategy(),
        ("networking.k8s.io", "ingressclasses"): networking.IngressClassStrategy(),
        ("networking.k8s.io", "networkpolicies"): networking.NetworkPolicyStrategy(),
        ("discovery.k8s.io", "endpointslices"): networking.EndpointSliceStrategy(),
        (_ADMISSION, "mutatingwebhookconfigurations"): admission.WebhookConfigurationStrategy(mutating=True),
        (_ADMISSION, "validatingwebhookconfigurations"): admission.WebhookConfigurationStrategy(mutating=False),
        (_ADMISSION, "validatingadmissionpolicies"): admission.AdmissionPolicyStrategy(
            generations=True, status="admissionregistration.v1.ValidatingAdmissionPolicyStatus"
        ),
        (_ADMISSION, "mutatingadmissionpolicies"): admission.AdmissionPolicyStrategy(generations=True),
        (_ADMISSION, "validatingadmissionpolicybindings"): admission.ValidatingPolicyBindingStrategy(generations=True),
        (_ADMISSION, "mutatingadmissionpolicybindings"): admission.AdmissionPolicyBindingStrategy(generations=True),
    }
    return {GroupResource("", plural): rules for plural, rules in core.items()} | {
        GroupResource(*key): rules for key, rules in others.items()
    }
