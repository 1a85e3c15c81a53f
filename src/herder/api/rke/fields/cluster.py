"""Fields of a provisioning Cluster outside rkeConfig."""

from __future__ import annotations

from collections.abc import Iterator

from herder.api.rke.distributions import K3S, KUBEADM, RKE2
from herder.api.rke.fields.rows import Row, done, done_on, refused, without_effect

_NO_FLEET = "there is no Fleet agent; remove the field"
_NO_WEBHOOK = "there is no rancher-webhook in the cluster; remove the field"
_NO_AGENT_POD = "the cluster agent is part of embedded servers, and runs in no Pod; remove the field"
_NO_SCHEDULING = "the cluster agent has no PriorityClass and no PodDisruptionBudget; create them in the cluster"
_UNUSED = "deprecated, and unused in Rancher too"


def _tolerations(customization: str) -> list[str]:
    parts = ("effect", "key", "operator", "tolerationSeconds", "value")
    return [f"{customization}.appendTolerations[].{part}" for part in parts]


def _resources(customization: str) -> list[str]:
    parts = ("claims[].name", "claims[].request", "limits", "requests")
    return [f"{customization}.overrideResourceRequirements.{part}" for part in parts]


def _budget(parent: str) -> list[str]:
    return [f"{parent}.podDisruptionBudget.{part}" for part in ("maxUnavailable", "minAvailable")]


def _scheduling(customization: str) -> list[str]:
    parent = f"{customization}.schedulingCustomization"
    return [*_budget(parent), f"{parent}.priorityClass.preemptionPolicy", f"{parent}.priorityClass.value"]


def _cluster_agent() -> Iterator[Row]:
    agent = "spec.clusterAgentDeploymentCustomization"
    with_pods = (K3S, RKE2, KUBEADM)
    yield done_on(f"{agent}.overrideAffinity", *with_pods, reason=_NO_AGENT_POD, subtree=True)
    for path in (*_tolerations(agent), *_resources(agent)):
        yield done_on(path, *with_pods, reason=_NO_AGENT_POD)
    yield from (refused(path, _NO_SCHEDULING) for path in _scheduling(agent))


def _other_agents() -> Iterator[Row]:
    fleet, webhook = "spec.fleetAgentDeploymentCustomization", "spec.webhookDeploymentCustomization"
    for agent, reason in ((fleet, _NO_FLEET), (webhook, _NO_WEBHOOK)):
        yield refused(f"{agent}.overrideAffinity", reason, subtree=True)
        yield from (refused(path, reason) for path in (*_tolerations(agent), *_resources(agent)))
    yield from (refused(path, _NO_FLEET) for path in _scheduling(fleet))
    yield from (refused(path, _NO_WEBHOOK) for path in (*_budget(webhook), f"{webhook}.replicaCount"))


ROWS = (
    done("spec.agentEnvVars[].name"),
    done("spec.agentEnvVars[].value"),
    done("spec.cloudCredentialSecretName"),
    without_effect("spec.clusterAPIConfig.clusterName", _UNUSED),
    *_cluster_agent(),
    without_effect("spec.defaultClusterRoleForProjectMembers", _UNUSED),
    refused(
        "spec.defaultPodSecurityAdmissionConfigurationTemplateName",
        "there are no pod security templates; set pod-security-admission-config-file or kube-apiserver-arg in "
        "machineGlobalConfig, and the file in machineSelectorFiles",
    ),
    refused(
        "spec.enableNetworkPolicy", "projects are not isolated from each other; create NetworkPolicies in the cluster"
    ),
    done("spec.kubernetesVersion"),
    refused("spec.localClusterAuthEndpoint.caCerts", "kubeconfigs have no context for the endpoint; remove the field"),
    done_on(
        "spec.localClusterAuthEndpoint.enabled",
        K3S,
        RKE2,
        reason="only API servers of K3s and RKE2 can be configured for it; use the kubeconfig of the cluster",
        remark="configures API servers to ask kube-api-auth on their machine, which you must deploy yourself",
    ),
    refused("spec.localClusterAuthEndpoint.fqdn", "kubeconfigs have no context for the endpoint; remove the field"),
    done(
        "spec.redeploySystemAgentGeneration",
        "fails on clusters with Windows machines, and if agentEnvVars names another source of the agent",
    ),
    *_other_agents(),
)
