"""Archived machine logs: one ConfigMap per machine, in a namespace of their own."""

from __future__ import annotations

from herder.api.capi.kinds import SECRET
from herder.api.capi.names import annotations_of
from herder.api.machines import names
from herder.engine.meta.kinds import Kind, Object

CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps")
CONFIG_MAP_METADATA = CONFIG_MAP.metadata_only()
MACHINE_LOG, MACHINE_STATE = "machine-log", "machine-state"
SELECTOR = names.ARCHIVE_LABEL  # selects all archives; the label's value is the writer
MAX_LOG_BYTES = 256 * 1024

# Annotations: the machine that the log belongs to, and when its Job finished.
NAMESPACE_OF = "machine.herder.io/namespace"
NAME_OF = "machine.herder.io/name"
KIND_OF = "machine.herder.io/kind"
PLURAL_OF = "machine.herder.io/resource"
INSTANCE_OF = "machine.herder.io/instance"
UID_OF = "machine.herder.io/uid"
FINISHED_AT = "machine.herder.io/finished-at"
FAILED_IN = "machine.herder.io/failed-in"  # on the log of a machine that could not be created: its MachineSet
_JOB_OF = {names.CREATE_LOG: "machine.herder.io/create-job", names.REMOVE_LOG: "machine.herder.io/remove-job"}


def _identity(infra: Object, kind: Kind) -> dict[str, str]:
    meta = infra["metadata"]
    return {
        NAMESPACE_OF: meta["namespace"],
        NAME_OF: meta["name"],
        KIND_OF: kind.kind,
        PLURAL_OF: kind.plural,
        INSTANCE_OF: names.instance_name(meta["name"]),
        UID_OF: meta["uid"],
    }


def log_object(
    infra: Object, kind: Kind, key: str, job_uid: str, text: str, finished_at: str, *, failed_in: str = ""
) -> Object:
    meta = infra["metadata"]
    status = {**_identity(infra, kind), FINISHED_AT: finished_at, _JOB_OF[key]: job_uid}
    if failed_in:
        status[FAILED_IN] = failed_in
    return {
        "apiVersion": CONFIG_MAP.api_version,
        "kind": CONFIG_MAP.kind,
        "metadata": {
            "name": names.archived_log(meta["namespace"], meta["name"]),
            "namespace": names.ARCHIVE_NAMESPACE,
            "labels": {names.ARCHIVE_LABEL: MACHINE_LOG},
            "annotations": status,
        },
        "data": {key: log_tail(text)},
    }


def log_tail(text: str) -> str:
    """Return the end of a log, up to the size limit; it is more informative than the beginning."""
    encoded = text.encode()
    return text if len(encoded) <= MAX_LOG_BYTES else encoded[-MAX_LOG_BYTES:].decode(errors="ignore")


def archived_job_uid(log: Object, key: str) -> str:
    """Return the UID of the Job that wrote this log."""
    return annotations_of(log).get(_JOB_OF[key], "")


def state_copy(state: Object, infra: Object, kind: Kind) -> Object:
    """Return a copy of a machine's state Secret, if its namespace is deleted before the machine could be removed.

    With it, the machine CLI can still remove the machine.
    """
    meta = infra["metadata"]
    return {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": {
            "name": names.archived_state(meta["namespace"], meta["name"]),
            "namespace": names.ARCHIVE_NAMESPACE,
            "labels": {names.ARCHIVE_LABEL: MACHINE_STATE},
            "annotations": _identity(infra, kind),
        },
        "type": state.get("type", names.STATE_SECRET_TYPE),
        "data": state.get("data") or {},
    }
