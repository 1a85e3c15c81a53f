"""Schema of the cluster configuration, which provisioning Cluster and RKEControlPlane share."""

from __future__ import annotations

from collections.abc import Mapping

from herder.api.capi.crds.pieces import SELECTOR
from herder.api.capi.crds.schema import OPEN_OBJECT, Schema, plain_list, record, string, string_map, with_description
from herder.api.rke.schema.pieces import (
    COUNT_OR_PERCENT,
    PLAIN,
    SECRET_NAME,
    flag,
    integer,
    nullable,
    number,
    optional_flag,
    text,
)

_FREE = nullable(OPEN_OBJECT)

# --- upgrade strategy -----------------------------------------------------------------------------------------------

_HOOK = record({"annotation": nullable(string("Annotation of the machine's plan Secret to wait for.", max=317))})


def _hooks(description: str) -> Schema:
    return nullable(plain_list(_HOOK, description))


_DRAIN = record(
    {
        "enabled": flag("Whether Nodes are drained; otherwise the other options have no effect."),
        "force": flag("Whether to delete pods without a controller; otherwise they block the drain."),
        "ignoreDaemonSets": optional_flag(
            "Whether pods of DaemonSets stay; defaults to true. If false, they block it."
        ),
        "ignoreErrors": flag("Whether other pods are drained although some block the drain."),
        "deleteEmptyDirData": flag("Whether to delete pods with emptyDir volumes; otherwise they block the drain."),
        "disableEviction": flag("Whether to delete pods instead of evicting them, ignoring PodDisruptionBudgets."),
        "gracePeriod": integer("Seconds that pods have to stop; their own grace period if negative."),
        "timeout": integer(
            "Seconds after which the remaining pods are reported; defaults to 600. The drain continues."
        ),
        "skipWaitForDeleteTimeoutSeconds": integer(
            "Seconds after which a pod that is being deleted is not waited for; unlimited if 0."
        ),
        "preDrainHooks": _hooks("Annotations that other controllers must set before the drain starts."),
        "postDrainHooks": _hooks("Annotations that other controllers must set after the drain, before the change."),
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
    },
    "How a change is rolled out to the machines.",
)

# --- machine files and configuration --------------------------------------------------------------------------------

_SELECTOR = nullable(with_description(SELECTOR, "Label selector of Machines; all if unset."))
_FILE = record(
    {
        "key!": text("Key in the Secret or ConfigMap."),
        "path!": text("Absolute path of the file on the machines."),
        "dynamic": flag("Whether a change requires no restart."),
        "permissions": text("Permissions of the file in octal digits; the default ones if empty."),
        "hash": text("Expected hash of the content; other content is rejected."),
    }
)


def _files_of(kind: str) -> Schema:
    fields = {
        "name!": with_description(SECRET_NAME, f"Name of the {kind}, in the namespace of the Cluster."),
        "defaultPermissions": text("Permissions of files that set none, in octal digits."),
        "items": nullable(plain_list(_FILE, "Files to write.")),
    }
    return record(fields, f"Files from a {kind} that is authorized for this cluster.")


_SELECTED_CONFIG = nullable(
    plain_list(
        record(
            {
                "machineLabelSelector": _SELECTOR,
                "config": with_description(_FREE, "Configuration of the distribution on these machines."),
            }
        ),
        "Configuration of machines by label; later entries override earlier ones.",
    )
)
_FILE_SOURCES = plain_list(
    record({"secret": _files_of("Secret"), "configMap": _files_of("ConfigMap")}), "Objects with the files."
)
_SELECTED_FILES = nullable(
    plain_list(
        record({"machineLabelSelector": _SELECTOR, "fileSources": nullable(_FILE_SOURCES)}),
        "Files on machines, by label.",
    )
)

# --- registries, etcd and networking --------------------------------------------------------------------------------


def _by_host(schema: Schema, description: str) -> Schema:
    return nullable({"type": "object", "additionalProperties": schema, "description": description})


_REGISTRIES = nullable(
    record(
        {
            "mirrors": _by_host(
                record(
                    {
                        "endpoint": nullable(plain_list(PLAIN, "URLs of the mirrors, tried in this order.")),
                        "rewrite": nullable(string_map("Replacements of image names, by regular expression.")),
                    }
                ),
                "Mirrors by registry host; * is every host.",
            ),
            "configs": _by_host(
                record(
                    {
                        "authConfigSecretName": with_description(
                            SECRET_NAME, "Secret of type rke.cattle.io/auth-config."
                        ),
                        "tlsSecretName": with_description(SECRET_NAME, "Secret with tls.crt and tls.key."),
                        "caBundle": nullable(
                            {"type": "string", "format": "byte", "description": "CA certificates in PEM, as base64."}
                        ),
                        "insecureSkipVerify": flag("Whether the certificate of the registry is not verified."),
                    }
                ),
                "Credentials and TLS settings by registry host.",
            ),
        },
        "Image registries of the container runtime.",
    )
)

S3 = record(
    {
        "endpoint": text("Host name of the S3 service."),
        "endpointCA": text("CA certificate of the S3 service in PEM, or a file with it."),
        "skipSSLVerify": flag("Whether the certificate of the S3 service is not verified."),
        "bucket": nullable(string("Name of the bucket.", max=63)),
        "region": text("Region of the bucket."),
        "cloudCredentialName": nullable(string("Secret with accessKey and secretKey, as namespace:name.")),
        "retention": nullable(integer("Number of snapshots to keep in the bucket.") | {"minimum": 0}),
        "folder": text("Folder in the bucket."),
    },
    "S3 bucket of etcd snapshots.",
)
_ETCD = nullable(
    record(
        {
            "disableSnapshots": flag("Whether no scheduled snapshots are taken."),
            "snapshotScheduleCron": text("Schedule of snapshots in cron format."),
            "snapshotRetention": integer("Number of scheduled snapshots to keep on each machine."),
            "s3": nullable(S3),
        },
        "Scheduled etcd snapshots.",
    )
)
_NETWORKING = nullable(
    record(
        {"stackPreference": nullable(string("IP family of probes.", enum=["", "dual", "ipv4", "ipv6"]))},
        "Network settings of the machines.",
    )
)
_DATA_DIRECTORIES = record(
    {
        "systemAgent": text("Directory of the node agent; defaults to /var/lib/rancher/agent."),
        "provisioning": text("Directory of files that plans write; defaults to /var/lib/rancher/capr."),
        "k8sDistro": text("Data directory of the distribution; defaults to /var/lib/rancher and its name."),
    },
    "Directories on the machines; immutable.",
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
    "provisionGeneration": integer("Increment to reconcile every machine again."),
}

# --- operations -----------------------------------------------------------------------------------------------------

_GENERATION = "Increment to request the operation again."

SNAPSHOT_CREATE = record({"generation": integer(_GENERATION)}, "Request for an etcd snapshot.")
SNAPSHOT_RESTORE = record(
    {
        "name": text("Name of the ETCDSnapshot, or of a snapshot file."),
        "generation": integer(_GENERATION),
        "restoreRKEConfig": nullable(
            string("What to restore besides the data.", enum=["", "none", "kubernetesVersion", "all"])
        ),
    },
    "Request to restore an etcd snapshot.",
)
ROTATE_CERTIFICATES = record(
    {
        "generation": number(_GENERATION),
        "services": nullable(plain_list(PLAIN, "Services whose certificates are renewed; all if empty.")),
        "caCertificates": flag(
            "Whether to rotate certificate authorities too, with the certificates of all services. K3s and RKE2 only."
        ),
    },
    "Request to renew certificates.",
)
ROTATE_KEYS = record({"generation": number(_GENERATION)}, "Request to rotate the encryption keys of Secrets in etcd.")

OPERATIONS: Mapping[str, Schema] = {
    "etcdSnapshotCreate": nullable(SNAPSHOT_CREATE),
    "etcdSnapshotRestore": nullable(SNAPSHOT_RESTORE),
    "rotateCertificates": nullable(ROTATE_CERTIFICATES),
    "rotateEncryptionKeys": nullable(ROTATE_KEYS),
}
"""Operations; each runs once per new generation."""

# --- agents ---------------------------------------------------------------------------------------------------------

ENVIRONMENT = nullable(
    plain_list(
        record({"name": string("Name of the variable."), "value": text("Value of the variable.")}),
        "Environment variables of the node agents and the cluster agent.",
    )
)
AUTH_ENDPOINT = record(
    {
        "enabled": flag("Whether the API servers accept tokens of the manager."),
        "fqdn": text("Host name of the API servers for such clients."),
        "caCerts": text("CA certificates of that host in PEM, if it does not use those of the cluster."),
    },
    "Authorized cluster endpoint: access to the API servers without the manager.",
)
