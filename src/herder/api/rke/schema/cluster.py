"""Schema of the provisioning Cluster."""

from __future__ import annotations

from herder.api.capi.crds.schema import map_list, record, string
from herder.api.rke.schema.agents import CUSTOMIZATION, WEBHOOK_CUSTOMIZATION
from herder.api.rke.schema.configuration import AUTH_ENDPOINT, CONFIGURATION, ENVIRONMENT, OPERATIONS
from herder.api.rke.schema.pieces import CONDITIONS, CREDENTIAL, FLAG, NUMBER, OPTIONAL_FLAG, REFERENCE, TEXT, nullable
from herder.api.rke.schema.pools import HOSTNAME_LENGTH, MAX_POOLS, POOL

_RKE_CONFIG = nullable(
    record(
        {
            **CONFIGURATION,
            **OPERATIONS,
            "machinePools": nullable(map_list(["name"], POOL, max=MAX_POOLS)),
            "machinePoolDefaults": record({"hostnameLengthLimit": HOSTNAME_LENGTH}),
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
        "kubernetesVersion": nullable(string("Kubernetes version with its distribution, such as v1.34.1+k3s1.")),
        "rkeConfig": _RKE_CONFIG,
        "localClusterAuthEndpoint": AUTH_ENDPOINT,
        "agentEnvVars": ENVIRONMENT,
        "clusterAgentDeploymentCustomization": CUSTOMIZATION,
        "fleetAgentDeploymentCustomization": CUSTOMIZATION,
        "webhookDeploymentCustomization": WEBHOOK_CUSTOMIZATION,
        "clusterAPIConfig": nullable(record({"clusterName": TEXT})),
        "defaultClusterRoleForProjectMembers": TEXT,
        "defaultPodSecurityAdmissionConfigurationTemplateName": TEXT,
        "enableNetworkPolicy": OPTIONAL_FLAG,
        "redeploySystemAgentGeneration": NUMBER,
    }
)

CLUSTER_STATUS = record(
    {
        "ready": FLAG | {"description": "Whether the condition Ready is True."},
        "display": record(
            {
                "state": string(
                    "One of Pending, Provisioning, Updating, Ready, Degraded, Disconnected, Stalled and Deleting."
                ),
                "message": string("Why the cluster is in this state, in one line; empty if it is ready."),
                "version": string("Kubernetes version that runs in the cluster; the desired one until it is known."),
                "readyMachines": string("Ready and desired machines, such as 3/4; Nodes of an imported cluster."),
            },
            "Summary of the conditions, shown by kubectl get.",
        ),
        "clusterName": string("Name of the management Cluster."),
        "fleetWorkspaceName": string(max=63),
        "clientSecretName": string("Name of the Secret with the kubeconfig.", max=253),
        "agentDeployed": FLAG,
        "observedGeneration": NUMBER,
        "conditions": CONDITIONS,
    }
)
