"""How a cluster's Kubernetes is set up: the part of a provisioning Cluster that its RKEControlPlane has too."""

from __future__ import annotations

from collections.abc import Mapping

from herder.api.capi.crds.pieces import SELECTOR
from herder.api.capi.crds.schema import OPEN_OBJECT, Schema, plain_list, record, string, string_map, told
from herder.api.rke.schema.pieces import (
    FLAG,
    INTEGER,
    NUMBER,
    OPTIONAL_FLAG,
    PLAIN,
    SECRET_NAME,
    SHARE,
    TEXT,
    nullable,
)

_FREE = nullable(OPEN_OBJECT)

# --- how changes are rolled out -------------------------------------------------------------------------------------

_HOOKS = nullable(
    plain_list(
        record({"annotation": nullable(string("Waited for on the plan Secret of a machine.", max=317))}),
    )
)
_DRAIN = record(
    {
        "enabled": FLAG,
        "force": FLAG,
        "ignoreDaemonSets": OPTIONAL_FLAG,
        "ignoreErrors": FLAG,
        "deleteEmptyDirData": FLAG,
        "disableEviction": FLAG,
        "gracePeriod": INTEGER,
        "timeout": INTEGER,
        "skipWaitForDeleteTimeoutSeconds": INTEGER,
        "preDrainHooks": _HOOKS,
        "postDrainHooks": _HOOKS,
    },
    "Whether and how Nodes are drained before they are changed.",
)
_STRATEGY = record(
    {
        "controlPlaneConcurrency": told(SHARE, 'How many control plane machines are changed at once; "0" is all.'),
        "controlPlaneDrainOptions": _DRAIN,
        "workerConcurrency": told(SHARE, 'How many workers are changed at once; "0" is all.'),
        "workerDrainOptions": _DRAIN,
    }
)

# --- what machines get ----------------------------------------------------------------------------------------------

_SELECTOR = nullable(told(SELECTOR, "Which Machines, by their labels; without one, all."))
_FILES_OF = record(
    {
        "name!": SECRET_NAME,
        "defaultPermissions": TEXT,
        "items": nullable(
            plain_list(
                record(
                    {
                        "key!": TEXT,
                        "path!": TEXT,
                        "dynamic": FLAG | {"description": "Whether it may change without a restart."},
                        "permissions": TEXT,
                        "hash": nullable(string("Of the content that is meant; another is refused.")),
                    }
                )
            )
        ),
    }
)
_SELECTED_CONFIG = nullable(plain_list(record({"machineLabelSelector": _SELECTOR, "config": _FREE})))
_SELECTED_FILES = nullable(
    plain_list(
        record(
            {
                "machineLabelSelector": _SELECTOR,
                "fileSources": nullable(plain_list(record({"secret": _FILES_OF, "configMap": _FILES_OF}))),
            }
        )
    )
)

# --- what it is made with -------------------------------------------------------------------------------------------


def _by_host(schema: Schema) -> Schema:
    return nullable({"type": "object", "additionalProperties": schema})


_REGISTRIES = nullable(
    record(
        {
            "mirrors": _by_host(record({"endpoint": nullable(plain_list(PLAIN)), "rewrite": nullable(string_map())})),
            "configs": _by_host(
                record(
                    {
                        "authConfigSecretName": told(SECRET_NAME, "A Secret of type rke.cattle.io/auth-config."),
                        "tlsSecretName": told(SECRET_NAME, "A Secret with tls.crt and tls.key."),
                        "caBundle": nullable({"type": "string", "format": "byte"}),
                        "insecureSkipVerify": FLAG,
                    }
                )
            ),
        }
    )
)

S3 = record(
    {
        "endpoint": TEXT,
        "endpointCA": TEXT,
        "skipSSLVerify": FLAG,
        "bucket": nullable(string(max=63)),
        "region": TEXT,
        "cloudCredentialName": nullable(string("namespace:name of the Secret with accessKey and secretKey.")),
        "retention": nullable(INTEGER | {"minimum": 0}),
        "folder": TEXT,
    }
)
_ETCD = nullable(
    record(
        {
            "disableSnapshots": FLAG,
            "snapshotScheduleCron": TEXT,
            "snapshotRetention": INTEGER,
            "s3": nullable(S3),
        }
    )
)
_NETWORKING = nullable(
    record({"stackPreference": nullable(string("How machines are asked.", enum=["", "dual", "ipv4", "ipv6"]))})
)
_DATA_DIRECTORIES = record(
    {"systemAgent": TEXT, "provisioning": TEXT, "k8sDistro": TEXT}, "On the machines. Set once, with the cluster."
)

CONFIGURATION: Mapping[str, Schema] = {
    "upgradeStrategy": _STRATEGY,
    "chartValues": told(_FREE, "Values of each chart that comes with the distribution."),
    "machineGlobalConfig": told(_FREE, "The distribution's configuration on all machines."),
    "machineSelectorConfig": _SELECTED_CONFIG,
    "machineSelectorFiles": _SELECTED_FILES,
    "additionalManifest": nullable(string("YAML that is applied in the cluster.")),
    "registries": _REGISTRIES,
    "etcd": _ETCD,
    "networking": _NETWORKING,
    "dataDirectories": _DATA_DIRECTORIES,
    "provisionGeneration": INTEGER | {"description": "A new number: every machine is gone through again."},
}

# --- operations -----------------------------------------------------------------------------------------------------

SNAPSHOT_CREATE = record({"generation": INTEGER})
SNAPSHOT_RESTORE = record(
    {
        "name": TEXT,
        "generation": INTEGER,
        "restoreRKEConfig": nullable(
            string("What comes back besides the data.", enum=["", "none", "kubernetesVersion", "all"])
        ),
    }
)
ROTATE_CERTIFICATES = record({"generation": NUMBER, "services": nullable(plain_list(PLAIN))})
ROTATE_KEYS = record({"generation": NUMBER})

OPERATIONS: Mapping[str, Schema] = {
    "etcdSnapshotCreate": nullable(SNAPSHOT_CREATE),
    "etcdSnapshotRestore": nullable(SNAPSHOT_RESTORE),
    "rotateCertificates": nullable(ROTATE_CERTIFICATES),
    "rotateEncryptionKeys": nullable(ROTATE_KEYS),
}
"""What is done once for each new generation in them."""

# --- agents ---------------------------------------------------------------------------------------------------------

ENVIRONMENT = nullable(plain_list(record({"name": PLAIN, "value": TEXT})))
AUTH_ENDPOINT = record({"enabled": FLAG, "fqdn": TEXT, "caCerts": TEXT})
