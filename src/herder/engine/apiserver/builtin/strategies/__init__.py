"""Strategies of the built-in kinds: name rules, server-owned fields, validation and immutability."""

from __future__ import annotations

from functools import cache

from herder.engine.apiserver.builtin.strategies import (
    admission,
    cluster,
    configuration,
    events,
    namespaces,
    networking,
    nodes,
    rbac,
    services,
)
from herder.engine.apiserver.builtin.strategies.base import BuiltinStrategy
from herder.engine.apiserver.builtin.strategies.workload import controllers, jobs, pods
from herder.engine.apiserver.registry.strategy import Strategy
from herder.engine.meta.kinds import GroupResource

_RBAC = "rbac.authorization.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"
_WITH_GENERATION = {  # kinds with the default strategy, but with metadata.generation
    GroupResource("resource.k8s.io", "deviceclasses"),
    GroupResource("resource.k8s.io", "resourceslices"),
    GroupResource("flowcontrol.apiserver.k8s.io", "flowschemas"),
    GroupResource("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations"),
}


def _resources(*names: str) -> frozenset[GroupResource]:
    pairs = (name.partition(".") for name in names)
    return frozenset(GroupResource(group, plural) for plural, _, group in pairs)


# PUT creates a missing object.
_CREATES_ON_UPDATE = _resources(
    "limitranges", "events", "events.events.k8s.io", "services", "endpoints", "leases.coordination.k8s.io",
    "runtimeclasses.node.k8s.io", f"roles.{_RBAC}", f"rolebindings.{_RBAC}", f"clusterroles.{_RBAC}",
    f"clusterrolebindings.{_RBAC}",
)  # fmt: skip
# PUT without resourceVersion is rejected.
_NEEDS_VERSION = _resources(
    "runtimeclasses.node.k8s.io", "poddisruptionbudgets.policy", "csidrivers.storage.k8s.io",
    "csistoragecapacities.storage.k8s.io", "volumeattachments.storage.k8s.io", "csinodes.storage.k8s.io",
    "leases.coordination.k8s.io", "apiservices.apiregistration.k8s.io", f"validatingadmissionpolicies.{_ADMISSION}",
    f"validatingadmissionpolicybindings.{_ADMISSION}", f"mutatingadmissionpolicies.{_ADMISSION}",
    f"mutatingadmissionpolicybindings.{_ADMISSION}", f"mutatingwebhookconfigurations.{_ADMISSION}",
    f"validatingwebhookconfigurations.{_ADMISSION}",
)  # fmt: skip
# Finalizers with any name are accepted.
_FREE_FINALIZERS = _resources(
    "events", "events.events.k8s.io", "leases.coordination.k8s.io", "poddisruptionbudgets.policy",
    "customresourcedefinitions.apiextensions.k8s.io",
)  # fmt: skip
# Updates are validated like creates, and as changes.
_REPEATS_METADATA_ERRORS = _resources(
    "configmaps", "secrets", "pods", "serviceaccounts", "endpoints", "limitranges", "persistentvolumeclaims",
    "jobs.batch", "ingresses.networking.k8s.io", "endpointslices.discovery.k8s.io", f"roles.{_RBAC}",
    f"rolebindings.{_RBAC}", f"clusterroles.{_RBAC}", f"clusterrolebindings.{_RBAC}",
)  # fmt: skip
# DELETE returns the object instead of a Status.
_RETURNS_DELETED = _resources(
    "namespaces", "pods", "services", "podtemplates", "resourcequotas", "serviceaccounts", "persistentvolumes",
    "persistentvolumeclaims", "csidrivers.storage.k8s.io", "storageclasses.storage.k8s.io",
    "volumeattachments.storage.k8s.io", "csinodes.storage.k8s.io", "volumeattributesclasses.storage.k8s.io",
)  # fmt: skip


def strategy_for(resource: GroupResource, status_struct: str) -> Strategy:
    """Return the strategy of a resource. `status_struct` is the Go struct of its status, if it has one.

    The strategy of CustomResourceDefinitions is set by the `crds` package.
    """
    rules = _by_resource().get(resource) or BuiltinStrategy(
        generations=resource in _WITH_GENERATION, status=status_struct
    )
    rules.create_on_update = resource in _CREATES_ON_UPDATE
    rules.unconditional_update = resource not in _NEEDS_VERSION
    rules.standard_finalizers = resource not in _FREE_FINALIZERS
    rules.repeats_metadata_errors = resource in _REPEATS_METADATA_ERRORS
    rules.returns_deleted_object = resource in _RETURNS_DELETED or resource.group == "resource.k8s.io"
    return rules


@cache
def _by_resource() -> dict[GroupResource, Strategy]:
    core: dict[str, Strategy] = {
        "secrets": configuration.SecretStrategy(),
        "configmaps": configuration.ConfigMapStrategy(),
        "namespaces": namespaces.NamespaceStrategy(),
        "services": services.ServiceStrategy(),
        "pods": pods.PodStrategy(),
        "podtemplates": controllers.PodTemplateStrategy(),
        "replicationcontrollers": controllers.ReplicationControllerStrategy(),
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
        ("apps", "deployments"): controllers.DeploymentStrategy(),
        ("apps", "replicasets"): controllers.ReplicaSetStrategy(),
        ("apps", "statefulsets"): controllers.StatefulSetStrategy(),
        ("apps", "daemonsets"): controllers.DaemonSetStrategy(),
        ("apps", "controllerrevisions"): controllers.ControllerRevisionStrategy(),
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
