"""The provisioning log of a cluster: one ConfigMap next to the cluster, and an archive that outlives it; newest entry
last.
"""

from __future__ import annotations

from datetime import datetime

from herder.api.capi.conditions import find, is_false, is_true, timestamp
from herder.api.capi.names import annotations_of, is_deleting
from herder.api.machines import archive
from herder.api.machines import names as machine_names
from herder.api.management import display
from herder.api.rke.machines.removal import REMOVED
from herder.engine.meta.kinds import Object

LOG_NAME = "provisioning-log"
LOG, LAST, HEALTH = "log", "last", "health"  # keys of the ConfigMap; the last two hold the last message of a kind
MAX_LOG_BYTES = 10_000

ARCHIVED = "provisioning-log"  # value of the archive label
NAMESPACE_OF, NAME_OF, UID_OF = (f"provisioning.herder.io/{part}" for part in ("namespace", "name", "uid"))
GONE_SINCE = "provisioning.herder.io/gone-since"

HEALTHY = "all Nodes are ready and the cluster agent is connected again"
_CONFLICT = "the object has been modified; please apply your changes to the latest version and try again"


def current_message(cluster: Object) -> tuple[str, bool]:
    """Return the log message for the current state of a Cluster ("" for none), and whether it is a failure."""
    if is_deleting(cluster):
        return _of(cluster, REMOVED)
    message, failed = _of(cluster, "Provisioned")
    if not message and is_true(cluster, "Provisioned"):
        message, failed = _of(cluster, "Updated")
        if not message and is_true(cluster, "Updated") and (cluster.get("status") or {}).get("ready"):
            message = "provisioning done"
    return (f"Transient error encountered: {message}" if _CONFLICT in message else message), failed


def _of(cluster: Object, type_: str) -> tuple[str, bool]:
    return str((find(cluster, type_) or {}).get("message") or ""), is_false(cluster, type_)


def health_entry(cluster: Object, last: str) -> tuple[str, bool] | None:
    """Return the entry for a lost or recovered Node or agent, and whether it is a failure; None if nothing changed.

    Rollouts have their own messages at the same time, so `last` is the last message about health.
    """
    message = "" if is_deleting(cluster) else display.health_message(cluster)
    if message == last:
        return None
    return (message, True) if message else (HEALTHY, False)


def append_entry(log: str, message: str, failed: bool, now: datetime) -> str:
    """Append an entry and drop the oldest ones above the size limit."""
    level = "[ERROR]" if failed else "[INFO ]"
    before = log if log.endswith("\n") or not log else f"{log}\n"
    text = f"{before}{timestamp(now)} {level} {message}\n"
    while len(text.encode()) > MAX_LOG_BYTES and "\n" in text[:-1]:
        text = text.partition("\n")[2]
    return text


def archive_config_map(cluster: Object, text: str) -> Object:
    meta = cluster["metadata"]
    return {
        "apiVersion": archive.CONFIG_MAP.api_version,
        "kind": archive.CONFIG_MAP.kind,
        "metadata": {
            "name": archived_name(cluster),
            "namespace": machine_names.ARCHIVE_NAMESPACE,
            "labels": {machine_names.ARCHIVE_LABEL: ARCHIVED},
            "annotations": {NAMESPACE_OF: meta["namespace"], NAME_OF: meta["name"], UID_OF: meta["uid"]},
        },
        "data": {LOG: text},
    }


def archived_name(cluster: Object) -> str:
    """Include the UID, so that a later cluster with the same name does not overwrite the archive."""
    meta = cluster["metadata"]
    return machine_names.safe_concat(meta["namespace"], meta["name"], "provisioning", "log", meta["uid"][:8])


def cluster_of(kept: Object) -> tuple[str, str]:
    """Return namespace and name of the cluster that an archived log belongs to."""
    annotations = annotations_of(kept)
    return annotations.get(NAMESPACE_OF, ""), annotations.get(NAME_OF, "")


def uid_of(kept: Object) -> str:
    """Return the UID of the cluster that an archived log belongs to."""
    return annotations_of(kept).get(UID_OF, "")
