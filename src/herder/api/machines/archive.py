"""Logs of machines as they are kept: one ConfigMap for each machine, in a namespace of their own."""

from __future__ import annotations

from herder.api.capi.kinds import SECRET
from herder.api.capi.names import annotations_of
from herder.api.machines import names
from herder.engine.meta.kinds import Kind, Object

CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps")
CONFIG_MAP_METADATA = CONFIG_MAP.metadata_only()
MACHINE_LOG, MACHINE_STATE = "machine-log", "machine-state"
SELECTOR = names.ARCHIVE_LABEL  # all that is kept: who keeps it tells its own by the label's value
LARGEST_LOG = 256 * 1024

# Annotations: whose log it is, and when its Job ended.
NAMESPACE_OF = "machine.herder.io/namespace"
NAME_OF = "machine.herder.io/name"
KIND_OF = "machine.herder.io/kind"
PLURAL_OF = "machine.herder.io/resource"
INSTANCE_OF = "machine.herder.io/instance"
UID_OF = "machine.herder.io/uid"
FINISHED_AT = "machine.herder.io/finished-at"
FAILED_IN = "machine.herder.io/failed-in"  # of a machine that could not be created: its MachineSet
_JOB_OF = {names.CREATE_LOG: "machine.herder.io/create-job", names.REMOVE_LOG: "machine.herder.io/remove-job"}


def _whose(infra: Object, kind: Kind) -> dict[str, str]:
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
    status = {**_whose(infra, kind), FINISHED_AT: finished_at, _JOB_OF[key]: job_uid}
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
        "data": {key: end_of(text)},
    }


def end_of(text: str) -> str:
    """As much as is kept: the end tells more than the beginning."""
    encoded = text.encode()
    return text if len(encoded) <= LARGEST_LOG else encoded[-LARGEST_LOG:].decode(errors="ignore")


def kept_for(log: Object, key: str) -> str:
    """The uid of the Job whose log this is."""
    return annotations_of(log).get(_JOB_OF[key], "")


def state_copy(state: Object, infra: Object, kind: Kind) -> Object:
    """Of a machine that could not be removed before its namespace went: with it, the machine CLI still can."""
    meta = infra["metadata"]
    return {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": {
            "name": names.archived_state(meta["namespace"], meta["name"]),
            "namespace": names.ARCHIVE_NAMESPACE,
            "labels": {names.ARCHIVE_LABEL: MACHINE_STATE},
            "annotations": _whose(infra, kind),
        },
        "type": state.get("type", names.STATE_SECRET_TYPE),
        "data": state.get("data") or {},
    }
