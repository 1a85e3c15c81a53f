"""Schema of the cluster configuration, which provisioning Cluster and RKEControlPlane share."""

from __future__ import annotations

from collections.abc import Mapping

from herder.api.capi.crds.pieces import SELECTOR
from herder.api.capi.crds.schema import OPEN_OBJECT, Schema, plain_list, record, string, string_map, with_description
from herder.api.rke.schema.pieces import (
    COUNT_OR_PERCENT,
    FLAG,
    INTEGER,
    NUMBER,
    OPTIONAL_FLAG,
    PLAIN,
    SECRET_NAME,
    TEXT,
    nullable,
)

_FREE = nullable(OPEN_OBJECT)

# --- upgrade strategy -----------------------------------------------------------------------------------------------

_HOOKS = nullable(
    plain_list(
        record({"annotation": nullable(string("Annotation of the machine's plan Secret to wait for.", max=317))}),
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
    "Whether and how Nodes are drained before a disruptive change.",
)
_STRATEGY = record(
    {
        "controlPlaneConcurrency": with_description(
            COUNT_OR_PERCENT, 'Control plane machines to update at once; "0" is all.'
        ),
        "controlPlaneDrainOptions": _DRAIN,
        "workerConcurrency": with_description(COUNT_OR_PERCENT, 'Worker machines to update at once; "0" is all.'),
        "workerDrainOptions": _DRAIN,
    }
)

# --- machine files and configuration --------------------------------------------------------------------------------

_SELECTOR = nullable(with_description(SELECTOR, "Label selector of Machines; all if unset."))
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
                        "dynamic": FLAG | {"description": "Whether a change requires no restart."},
                        "permissions": TEXT,
                        "hash": nullable(string("Expected hash of the content; other content is rejected.")),
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

# --- registries, etcd and networking --------------------------------------------------------------------------------


def _by_host(schema: Schema) -> Schema:
    return nullable({"type": "object", "additionalProperties": schema})


_REGISTRIES = nullable(
    record(
        {
            "mirrors": _by_host(record({"endpoint": nullable(plain_list(PLAIN)), "rewrite": nullable(string_map())})),
            "configs": _by_host(
                record(
                    {
                        "authConfigSecretName": with_description(
                            SECRET_NAME, "Secret of type rke.cattle.io/auth-config."
                        ),
                        "tlsSecretName": with_description(SECRET_NAME, "Secret with tls.crt and tls.key."),
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
    record({"stackPreference": nullable(string("IP family of probes.", enum=["", "dual", "ipv4", "ipv6"]))})
)
_DATA_DIRECTORIES = record(
    {"systemAgent": TEXT, "provisioning": TEXT, "k8sDistro": TEXT}, "Directories on the machines; immutable."
)

CONFIGURATION: Mapping[str, Schema] = {
    "upgradeStrategy": _STRATEGY,
    "chartValues": with_description(_FREE, "Values of the distribution's charts, by chart."),
    "machineGlobalConfig": with_description(_FREE, "Configuration of the distribution on all machines."),
    "machineSelectorConfig": _SELECTED_CONFIG,
    "machineSelectorFiles": _SELECTED_FILES,
    "additionalManifest": nullable(string("YAML manifest that is applied in the cluster.")),
    "registries": _REGISTRIES,
    "etcd": _ETCD,
    "networking": _NETWORKING,
    "dataDirectories": _DATA_DIRECTORIES,
    "provisionGeneration": INTEGER | {"description": "Increment to reconcile every machine again."},
}

# --- operations -----------------------------------------------------------------------------------------------------

SNAPSHOT_CREATE = record({"generation": INTEGER})
SNAPSHOT_RESTORE = record(
    {
        "name": TEXT,
        "generation": INTEGER,
        "restoreRKEConfig": nullable(
            string("What to restore besides the data.", enum=["", "none", "kubernetesVersion", "all"])
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
"""Operations; each runs once per new generation."""

# --- agents ---------------------------------------------------------------------------------------------------------

ENVIRONMENT = nullable(plain_list(record({"name": PLAIN, "value": TEXT})))
AUTH_ENDPOINT = record({"enabled": FLAG, "fqdn": TEXT, "caCerts": TEXT})
