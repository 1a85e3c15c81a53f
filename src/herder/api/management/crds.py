"""Managed clusters and their registration tokens as CustomResourceDefinitions."""

from __future__ import annotations

from herder.api.capi.crds.definition import AGE, STATUS, column, condition_column
from herder.api.capi.crds.schema import OPEN_OBJECT, Schema, record, string
from herder.api.definitions import definition, root
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER, REGISTRATION_TOKEN
from herder.api.rke.schema.cluster import CLUSTER_SPEC, CLUSTER_STATUS
from herder.api.settings import FEWEST_GRACE_MINUTES, FEWEST_TTL_MINUTES

_INDEXED = {"auth.cattle.io/cluster-indexed": "true"}


def _minutes(described: str, fewest: int) -> Schema:
    return {"type": "integer", "format": "int64", "minimum": fewest, "nullable": True, "description": described}


MANAGEMENT_CLUSTER_CRD = definition(
    MANAGEMENT_CLUSTER,
    root({"spec": OPEN_OBJECT, "status": OPEN_OBJECT}, "A cluster that is managed from here."),
    columns=[
        column("Display Name", ".spec.displayName"),
        condition_column("Connected", "Connected"),
        condition_column("Ready", "Ready"),
        column("Version", ".status.info.kubernetesVersion"),
        column("Nodes", ".status.info.nodeCount", type="integer"),
        AGE,
    ],
    subresources=STATUS,
)

REGISTRATION_TOKEN_CRD = definition(
    REGISTRATION_TOKEN,
    root(
        {
            "spec": record(
                {
                    "clusterName": string("The management Cluster: the one that the namespace is named after."),
                    "ttl": _minutes("After how many minutes the token is replaced.", FEWEST_TTL_MINUTES),
                    "gracePeriod": _minutes(
                        "For how many minutes the token before it still counts.", FEWEST_GRACE_MINUTES
                    ),
                }
            ),
            "status": OPEN_OBJECT,
        },
        "How agents of a cluster register. The token itself is in a Secret.",
    ),
    columns=[column("Cluster", ".spec.clusterName"), column("Expires", ".status.expiresAt"), AGE],
)

PROVISIONING_CLUSTER_CRD = definition(
    PROVISIONING_CLUSTER,
    root(
        {"spec": CLUSTER_SPEC, "status": CLUSTER_STATUS}, "A cluster as people ask for it; without rkeConfig, imported."
    ),
    columns=[
        column("Version", ".spec.kubernetesVersion"),
        column("Cluster Name", ".status.clusterName"),
        AGE,
        column("Kubeconfig", ".status.clientSecretName"),
        column("Ready", ".status.ready"),
    ],
    subresources=STATUS,
    labels=_INDEXED,
    categories=["provisioning"],
)

CRDS = (MANAGEMENT_CLUSTER_CRD, REGISTRATION_TOKEN_CRD, PROVISIONING_CLUSTER_CRD)
