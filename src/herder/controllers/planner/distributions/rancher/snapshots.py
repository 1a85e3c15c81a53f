"""Configure etcd snapshots: schedule, retention and S3."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from herder.api.rke.node.plan import File
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs
from herder.controllers.planner.distributions.rancher.runtime import Runtime
from herder.controllers.planner.distributions.s3 import S3Storage, storage_of


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
    storage = storage_of(cluster)
    return _add_s3(config, storage, cluster, runtime) if storage is not None else []


def _add_s3(config: dict[str, Any], storage: S3Storage, cluster: ClusterInputs, runtime: Runtime) -> list[File]:
    values = {
        "bucket": storage.bucket,
        "access-key": storage.access_key,
        "secret-key": storage.secret_key,
        "region": storage.region,
        "folder": storage.folder,
        "endpoint": storage.endpoint,
        "skip-ssl-verify": storage.skip_ssl_verify,
        "retention": storage.retention,
    }
    config |= {f"etcd-s3-{name}": value for name, value in values.items() if value}
    config["etcd-s3"] = True
    if not storage.endpoint_ca:
        return []
    file = _authority(storage.endpoint_ca, cluster, runtime)
    config["etcd-s3-endpoint-ca"] = file.path
    return [file]


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
