"""Storage of etcd snapshots in S3: `rkeConfig.etcd.s3` of a cluster, and its cloud credential."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from herder.api.machines.credentials import GLOBAL_NAMESPACE
from herder.api.rke.machine_config.errors import ConfigError
from herder.controllers.planner.distributions.interface import ClusterInputs, Reference
from herder.controllers.planner.distributions.rancher.text import as_text

FIELD = "rkeConfig.etcd.s3"
_NAMING = ("bucket", "endpoint", "folder", "cloudCredentialName", "region")
"""Fields of which one must be set; the others alone request no storage in S3."""


@dataclass(frozen=True)
class S3Storage:
    bucket: str
    endpoint: str
    region: str
    folder: str
    access_key: str
    secret_key: str = field(repr=False)
    endpoint_ca: str = ""  # PEM, or PEM in base64
    skip_ssl_verify: bool = False
    retention: int = 0


def credential_of(spec: Mapping[str, Any], namespace: str) -> Reference | None:
    """The cloud credential: `name` in the cluster's namespace, or `cattle-global-data:name`."""
    full_name = str(((spec.get("etcd") or {}).get("s3") or {}).get("cloudCredentialName") or "")
    place, colon, name = full_name.partition(":")
    return Reference("Secret", place if colon else namespace, name if colon else full_name) if full_name else None


def references(spec: Mapping[str, Any], namespace: str) -> list[Reference]:
    credential = credential_of(spec, namespace)
    return [credential] if credential else []


def storage_of(cluster: ClusterInputs) -> S3Storage | None:
    """The storage of a cluster; None if it has none. The cluster's values override those of its credential."""
    s3: Mapping[str, Any] = (cluster.spec.get("etcd") or {}).get("s3") or {}
    if not any(s3.get(name) for name in _NAMING):
        return None
    credential = _credential(cluster)
    return S3Storage(
        bucket=s3.get("bucket") or credential.get("defaultBucket", ""),
        endpoint=s3.get("endpoint") or credential.get("defaultEndpoint", ""),
        region=s3.get("region") or credential.get("defaultRegion", ""),
        folder=s3.get("folder") or credential.get("defaultFolder", ""),
        access_key=credential.get("accessKey", ""),
        secret_key=credential.get("secretKey", ""),
        endpoint_ca=str(s3.get("endpointCA") or credential.get("defaultEndpointCA", "")),
        skip_ssl_verify=bool(s3.get("skipSSLVerify")) or credential.get("defaultSkipSSLVerify") == "true",
        retention=int(s3.get("retention") or 0),
    )


def _credential(cluster: ClusterInputs) -> dict[str, str]:
    reference = credential_of(cluster.spec, cluster.namespace)
    if reference is None:
        return {}
    path = f"{FIELD}.cloudCredentialName"
    if reference.namespace not in (cluster.namespace, GLOBAL_NAMESPACE):
        raise ConfigError(f"{path}: {reference} is in another namespace; name one of {cluster.namespace}")
    found = cluster.referenced.get(reference)
    if found is None:
        raise ConfigError(f"{path}: {reference} does not exist")
    return {key.rpartition("-")[2]: as_text(value, path) for key, value in found.data.items()}
