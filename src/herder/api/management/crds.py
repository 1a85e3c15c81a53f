"""CustomResourceDefinitions of managed clusters and their registration tokens."""

from __future__ import annotations

from herder.api.capi.crds.definition import AGE, STATUS, column, condition_column
from herder.api.capi.crds.schema import OPEN_OBJECT, Schema, record, string, with_description
from herder.api.definitions import definition, root
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER, REGISTRATION_TOKEN
from herder.api.rke.schema.cluster import CLUSTER_SPEC, CLUSTER_STATUS
from herder.api.settings import MIN_GRACE_MINUTES, MIN_TTL_MINUTES

STATE = column("Status", ".status.display.state")
REASON = column("Reason", ".status.display.message")
_INDEXED = {"auth.cattle.io/cluster-indexed": "true"}


def _minutes(description: str, minimum: int) -> Schema:
    return {"type": "integer", "format": "int64", "minimum": minimum, "nullable": True, "description": description}


MANAGEMENT_CLUSTER_CRD = definition(
    MANAGEMENT_CLUSTER,
    root(
        {
            "spec": with_description(OPEN_OBJECT, "Name, workspace and agent settings of the cluster."),
            "status": with_description(
                OPEN_OBJECT, "Connection and conditions of the cluster, and facts about its Nodes."
            ),
        },
        "A managed cluster.",
    ),
    columns=[
        column("Display Name", ".spec.displayName"),
        STATE,
        column("Version", ".status.info.kubernetesVersion"),
        column("Nodes", ".status.display.readyNodes"),
        REASON,
        AGE,
        condition_column("Connected", "Connected", wide=True),
        condition_column("Ready", "Ready", wide=True),
    ],
    subresources=STATUS,
)

REGISTRATION_TOKEN_CRD = definition(
    REGISTRATION_TOKEN,
    root(
        {
            "spec": record(
                {
                    "clusterName": string("Name of the management Cluster; equal to the namespace."),
                    "ttl": _minutes("Minutes after which the token is rotated.", MIN_TTL_MINUTES),
                    "gracePeriod": _minutes("Minutes for which the previous token stays valid.", MIN_GRACE_MINUTES),
                },
                "Desired state.",
            ),
            "status": with_description(
                OPEN_OBJECT, "Registration commands, in which {token} stands for the token, and when it expires."
            ),
        },
        "Registration of a cluster's agents. The token is in a Secret.",
    ),
    columns=[column("Cluster", ".spec.clusterName"), column("Expires", ".status.expiresAt"), AGE],
)

PROVISIONING_CLUSTER_CRD = definition(
    PROVISIONING_CLUSTER,
    root(
        {"spec": CLUSTER_SPEC, "status": CLUSTER_STATUS}, "A provisioned cluster; without rkeConfig, an imported one."
    ),
    columns=[
        STATE,
        column("Version", ".status.display.version"),
        column("Machines", ".status.display.readyMachines"),
        REASON,
        AGE,
        column("Cluster Name", ".status.clusterName", wide=True),
        column("Kubeconfig", ".status.clientSecretName", wide=True),
        column("Ready", ".status.ready", wide=True),
    ],
    subresources=STATUS,
    labels=_INDEXED,
    categories=["provisioning"],
)

CRDS = (MANAGEMENT_CLUSTER_CRD, REGISTRATION_TOKEN_CRD, PROVISIONING_CLUSTER_CRD)
