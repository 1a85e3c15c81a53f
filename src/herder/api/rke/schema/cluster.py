"""The provisioning Cluster: a cluster as people ask for it."""

from __future__ import annotations

from herder.api.capi.crds.schema import map_list, record, string
from herder.api.rke.schema.agents import CUSTOMIZATION, WEBHOOK_CUSTOMIZATION
from herder.api.rke.schema.configuration import AUTH_ENDPOINT, CONFIGURATION, ENVIRONMENT, OPERATIONS
from herder.api.rke.schema.pieces import CONDITIONS, CREDENTIAL, FLAG, NUMBER, OPTIONAL_FLAG, REFERENCE, TEXT, nullable
from herder.api.rke.schema.pools import HOSTNAME_LENGTH, MOST_POOLS, POOL

_RKE_CONFIG = nullable(
    record(
        {
            **CONFIGURATION,
            **OPERATIONS,
            "machinePools": nullable(map_list(["name"], POOL, max=MOST_POOLS)),
            "machinePoolDefaults": record({"hostnameLengthLimit": HOSTNAME_LENGTH}),
            "infrastructureRef": nullable(
                REFERENCE | {"description": "Another provider's infrastructure; without it, machines are all there is."}
            ),
        },
        "How the cluster is built. Without it, it is built elsewhere and imported.",
    )
)

CLUSTER_SPEC = record(
    {
        "cloudCredentialSecretName": CREDENTIAL,
        "kubernetesVersion": nullable(string("With the distribution, such as v1.34.1+k3s1.")),
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
        "ready": FLAG | {"description": "Whether the cluster has ever been reached."},
        "clusterName": string("Its management Cluster."),
        "fleetWorkspaceName": string(max=63),
        "clientSecretName": string("The Secret with its kubeconfig.", max=253),
        "agentDeployed": FLAG,
        "observedGeneration": NUMBER,
        "conditions": CONDITIONS,
    }
)
