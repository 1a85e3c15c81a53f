"""Configure etcd snapshots: schedule, retention and S3."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from herder.api.machines.credentials import GLOBAL_NAMESPACE
from herder.api.rke.machine_config.errors import ConfigError
from herder.api.rke.node.plan import File
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs, Reference
from herder.controllers.planner.distributions.rancher.runtime import Runtime
from herder.controllers.planner.distributions.rancher.text import as_text

_S3_FIELDS = ("bucket", "endpoint", "folder", "cloudCredentialName", "region")


def add_snapshots(
    config: dict[str, Any], cluster: ClusterInputs, machine: MachineInputs, runtime: Runtime
) -> list[File]:
    etcd: Mapping[str, Any] = cluster.spec.get("etcd") or {}
    if not machine.roles.etcd or not etcd:
        return []
    if etcd.get("disableSnapshots"):
        config["etcd-disable-snapshots"] = True
    if etcd.get("snapshotRetention"):
        config["etcd-snapshot-retention"] = etcd["snapshotRetention"]
    if etcd.get("snapshotScheduleCron"):
        config["etcd-snapshot-schedule-cron"] = etcd["snapshotScheduleCron"]
    return _add_s3(config, etcd.get("s3") or {}, cluster, runtime)


def credential_of(spec: Mapping[str, Any], namespace: str) -> Reference | None:
    """The cloud credential: `name` in the cluster's namespace, or `cattle-global-data:name`."""
    full_name = str(((spec.get("etcd") or {}).get("s3") or {}).get("cloudCredentialName") or "")
    place, colon, name = full_name.partition(":")
    return Reference("Secret", place if colon else namespace, name if colon else full_name) if full_name else None


def _add_s3(config: dict[str, Any], s3: Mapping[str, Any], cluster: ClusterInputs, runtime: Runtime) -> list[File]:
    """Add the S3 arguments; the cluster's values override those of its credential."""
    if not any(s3.get(field) for field in _S3_FIELDS):
        return []
    credential = _credential(cluster)
    values = {
        "bucket": s3.get("bucket") or credential.get("defaultBucket"),
        "access-key": credential.get("accessKey"),
        "secret-key": credential.get("secretKey"),
        "region": s3.get("region") or credential.get("defaultRegion"),
        "folder": s3.get("folder") or credential.get("defaultFolder"),
        "endpoint": s3.get("endpoint") or credential.get("defaultEndpoint"),
        "skip-ssl-verify": s3.get("skipSSLVerify") or credential.get("defaultSkipSSLVerify") == "true",
        "retention": s3.get("retention"),
    }
    config |= {f"etcd-s3-{name}": value for name, value in values.items() if value}
    config["etcd-s3"] = True
    authority = s3.get("endpointCA") or credential.get("defaultEndpointCA")
    if not authority:
        return []
    file = _authority(str(authority), cluster, runtime)
    config["etcd-s3-endpoint-ca"] = file.path
    return [file]


def _credential(cluster: ClusterInputs) -> dict[str, str]:
    reference = credential_of(cluster.spec, cluster.namespace)
    if reference is None:
        return {}
    field = "rkeConfig.etcd.s3.cloudCredentialName"
    if reference.namespace not in (cluster.namespace, GLOBAL_NAMESPACE):
        raise ConfigError(f"{field}: {reference} is in another namespace; name one of {cluster.namespace}")
    found = cluster.referenced.get(reference)
    if found is None:
        raise ConfigError(f"{field}: {reference} does not exist")
    return {key.rpartition("-")[2]: as_text(value, field) for key, value in found.data.items()}


def _authority(authority: str, cluster: ClusterInputs, runtime: Runtime) -> File:
    """The file of the endpoint's CA, which is given as PEM or as PEM in base64."""
    encoded = authority if _is_base64(authority) else base64.b64encode(authority.encode()).decode()
    digest = hashlib.md5(encoded.encode(), usedforsecurity=False).hexdigest()[:5]
    return File(path=f"{runtime.data(cluster)}/etc/config-files/s3-endpoint-ca-{digest}.crt", content=encoded)


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return True
