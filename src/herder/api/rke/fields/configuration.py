"""Fields of rkeConfig, except machine pools."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from herder.api.rke.distributions import EMBEDDED, K3S, KUBEADM, RKE2
from herder.api.rke.fields.rows import Effect, Row, done, done_on, without_effect
from herder.api.rke.services import NO_AUTHORITY_ROTATION

_CONFIG = "spec.rkeConfig"
_NO_CHARTS = "only K3s and RKE2 deploy charts; use additionalManifest"
_NO_SCHEDULE = "only K3s and RKE2 take scheduled etcd snapshots; run herder snapshot create regularly"
_NO_REGISTRIES = "embedded machines run no Pods, and install from the manager; remove the field"
_DIRECTORY = "this distribution has no such directory; remove the field"
_IPV4 = "probes of this distribution have a fixed address; remove the field"
_NOT_IN_REFERENCES = "references have kind and name; the object is in the namespace of the Cluster"

_DRAIN_OPTIONS = (
    "deleteEmptyDirData",
    "disableEviction",
    "enabled",
    "force",
    "gracePeriod",
    "ignoreDaemonSets",
    "ignoreErrors",
    "postDrainHooks[].annotation",
    "preDrainHooks[].annotation",
    "skipWaitForDeleteTimeoutSeconds",
    "timeout",
)


def reference(path: str) -> Iterator[Row]:
    yield from (done(f"{path}.{part}") for part in ("apiVersion", "kind", "name"))
    unused = ("fieldPath", "namespace", "resourceVersion", "uid")
    yield from (without_effect(f"{path}.{part}", _NOT_IN_REFERENCES) for part in unused)


def _selector(path: str) -> Iterator[Row]:
    parts = ("matchExpressions[].key", "matchExpressions[].operator", "matchExpressions[].values", "matchLabels")
    return (done(f"{path}.machineLabelSelector.{part}") for part in parts)


def _files() -> Iterator[Row]:
    yield from _selector(f"{_CONFIG}.machineSelectorFiles[]")
    items = tuple(f"items[].{part}" for part in ("dynamic", "hash", "key", "path", "permissions"))
    for source in ("configMap", "secret"):
        path = f"{_CONFIG}.machineSelectorFiles[].fileSources[].{source}"
        yield from (done(f"{path}.{part}") for part in ("defaultPermissions", "name", *items))


def _etcd() -> Iterator[Row]:
    path = f"{_CONFIG}.etcd"
    yield done(f"{path}.disableSnapshots", "disables the schedule; snapshots on demand remain possible")
    yield done(f"{path}.snapshotRetention", "of scheduled snapshots, on each server")
    yield done(f"{path}.snapshotScheduleCron", "on kubeadm and embedded clusters, the manager starts them, in UTC")
    s3 = (
        "bucket",
        "cloudCredentialName",
        "endpoint",
        "endpointCA",
        "folder",
        "region",
        "retention",
        "skipSSLVerify",
    )
    yield from (done(f"{path}.s3.{part}") for part in s3)


def _registries() -> Iterator[Row]:
    configs, mirrors = f"{_CONFIG}.registries.configs[]", f"{_CONFIG}.registries.mirrors[]"
    with_pods = (K3S, RKE2, KUBEADM)
    login = "on kubeadm, the registry must accept basic authentication"
    yield done_on(f"{configs}.authConfigSecretName", *with_pods, reason=_NO_REGISTRIES, remark=login)
    for part in ("caBundle", "insecureSkipVerify", "tlsSecretName"):
        yield done_on(f"{configs}.{part}", *with_pods, reason=_NO_REGISTRIES)
    yield done_on(f"{mirrors}.endpoint", *with_pods, reason=_NO_REGISTRIES)
    reason = "only K3s and RKE2 rewrite image names; mirror the images under their original names"
    yield done_on(f"{mirrors}.rewrite", K3S, RKE2, reason=reason)


def _upgrade_strategy() -> Iterator[Row]:
    path = f"{_CONFIG}.upgradeStrategy"
    reason = "servers of kubeadm and the embedded distribution run etcd too, and are updated one at a time"
    yield done_on(f"{path}.controlPlaneConcurrency", K3S, RKE2, otherwise=Effect.NONE, reason=reason)
    yield done(f"{path}.workerConcurrency")
    for tier in ("controlPlane", "worker"):
        yield from (done(f"{path}.{tier}DrainOptions.{option}") for option in _DRAIN_OPTIONS)


def _operations() -> Iterator[Row]:
    yield done(f"{_CONFIG}.etcdSnapshotCreate.generation")
    restore = ("generation", "name", "restoreRKEConfig")
    yield from (done(f"{_CONFIG}.etcdSnapshotRestore.{part}") for part in restore)
    yield from (done(f"{_CONFIG}.rotateCertificates.{part}") for part in ("generation", "services"))
    remark = "the old certificate authorities stay trusted until they expire"
    reason = "; ".join(each.partition(";")[0] for each in NO_AUTHORITY_ROTATION.values())
    row = done_on(f"{_CONFIG}.rotateCertificates.caCertificates", K3S, RKE2, reason=reason, remark=remark)
    yield replace(row, reasons=NO_AUTHORITY_ROTATION)
    yield done(f"{_CONFIG}.rotateEncryptionKeys.generation")


ROWS = (
    done(f"{_CONFIG}.additionalManifest"),
    done_on(f"{_CONFIG}.chartValues", K3S, RKE2, reason=_NO_CHARTS),
    done_on(f"{_CONFIG}.dataDirectories.k8sDistro", K3S, RKE2, EMBEDDED, reason=_DIRECTORY),
    done_on(f"{_CONFIG}.dataDirectories.provisioning", K3S, RKE2, reason=_DIRECTORY),
    done(f"{_CONFIG}.dataDirectories.systemAgent"),
    *_etcd(),
    *_operations(),
    *reference(f"{_CONFIG}.infrastructureRef"),
    done(f"{_CONFIG}.machineGlobalConfig", "unknown arguments are refused"),
    done(f"{_CONFIG}.machineSelectorConfig[].config", "unknown arguments are refused"),
    *_selector(f"{_CONFIG}.machineSelectorConfig[]"),
    *_files(),
    done_on(f"{_CONFIG}.networking.stackPreference", K3S, RKE2, reason=_IPV4, off=("ipv4",)),
    done(f"{_CONFIG}.provisionGeneration"),
    *_registries(),
    *_upgrade_strategy(),
)
