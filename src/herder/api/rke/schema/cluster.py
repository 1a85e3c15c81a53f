"""Schema of the provisioning Cluster."""

from __future__ import annotations

from herder.api.capi.crds.schema import map_list, record, string
from herder.api.rke.schema.agents import WEBHOOK_CUSTOMIZATION, customization
from herder.api.rke.schema.configuration import AUTH_ENDPOINT, CONFIGURATION, ENVIRONMENT, OPERATIONS
from herder.api.rke.schema.pieces import (
    CONDITIONS,
    CREDENTIAL,
    OBSERVED_GENERATION,
    REFERENCE,
    flag,
    nullable,
    number,
    optional_flag,
    text,
)
from herder.api.rke.schema.pools import HOSTNAME_LENGTH, MAX_POOLS, POOL

_RKE_CONFIG = nullable(
    record(
        {
            **CONFIGURATION,
            **OPERATIONS,
            "machinePools": nullable(
                map_list(["name"], POOL, "Machine pools: machines that Herder creates.", max=MAX_POOLS)
            ),
            "machinePoolDefaults": record(
                {"hostnameLengthLimit": HOSTNAME_LENGTH}, "Defaults for pools that do not set these fields."
            ),
            "infrastructureRef": nullable(
                REFERENCE | {"description": "Infrastructure cluster object of another provider; optional."}
            ),
        },
        "Provisioning configuration; without it, the cluster is imported.",
    )
)

CLUSTER_SPEC = record(
    {
        "cloudCredentialSecretName": CREDENTIAL,
        "kubernetesVersion": text("Kubernetes version with its distribution, such as v1.34.1+k3s1."),
        "rkeConfig": _RKE_CONFIG,
        "localClusterAuthEndpoint": AUTH_ENDPOINT,
        "agentEnvVars": ENVIRONMENT,
        "clusterAgentDeploymentCustomization": customization("Customization of the cluster agent's Deployment."),
        "fleetAgentDeploymentCustomization": customization(
            "Customization of the Fleet agent. Values are refused, because Herder does not deploy it."
        ),
        "webhookDeploymentCustomization": WEBHOOK_CUSTOMIZATION,
        "clusterAPIConfig": nullable(
            record({"clusterName": text("Name of the Cluster API Cluster.")}, "Accepted for compatibility, not used.")
        ),
        "defaultClusterRoleForProjectMembers": text("Accepted for compatibility, not used."),
        "defaultPodSecurityAdmissionConfigurationTemplateName": text("Refused, because there are no such templates."),
        "enableNetworkPolicy": optional_flag("Refused, because Herder does not isolate projects from each other."),
        "redeploySystemAgentGeneration": number(
            "Increment to redeploy the node agents of all machines: each gets the agent that the manager serves."
        ),
    },
    "Desired state of the cluster.",
)

_DISPLAY = record(
    {
        "state": string("One of Pending, Provisioning, Updating, Ready, Degraded, Disconnected, Stalled and Deleting."),
        "message": string("Why the cluster is in this state, in one line; empty if it is ready."),
        "version": string("Kubernetes version that runs in the cluster; the desired one until it is known."),
        "readyMachines": string("Ready and desired machines, such as 3/4; Nodes of an imported cluster."),
    },
    "Summary of the conditions, shown by kubectl get.",
)
CLUSTER_STATUS = record(
    {
        "ready": flag("Whether the condition Ready is True."),
        "display": _DISPLAY,
        "clusterName": string("Name of the management Cluster."),
        "fleetWorkspaceName": string("Workspace of the cluster: the namespace of this object.", max=63),
        "clientSecretName": string("Name of the Secret with the kubeconfig.", max=253),
        "agentDeployed": flag("Whether the cluster agent has been deployed."),
        "observedGeneration": OBSERVED_GENERATION,
        "conditions": CONDITIONS,
    },
    "Observed state of the cluster.",
)
