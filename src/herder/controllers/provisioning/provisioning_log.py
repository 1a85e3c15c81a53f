"""Provisioning logs: append each new message of a provisioned cluster, and archive the log after its deletion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from herder.api import settings
from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import NAMESPACE
from herder.api.capi.names import annotations_of, is_deleting, key_of_cluster, labels_of
from herder.api.machines import names as machine_names
from herder.api.machines.archive import CONFIG_MAP, CONFIG_MAP_METADATA, SELECTOR
from herder.api.management.clusters import BY_MANAGEMENT, is_provisioned_here, management_name
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.rke import log
from herder.api.times import parse_time
from herder.api.writes import delete, ref
from herder.controllers.provisioning.cluster.management import management_of
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Apply, Create, Decision, Patch, Write, waiting
from herder.engine.runtime.handlers import Indexed, Watches, changed
from herder.engine.runtime.view import View

# --- log --------------------------------------------------------------------------------------------------------------


def reconcile(view: View) -> Decision:
    cluster = view.get(PROVISIONING_CLUSTER, view.name)
    if cluster is None or not is_provisioned_here(cluster):
        return DONE
    management = management_of(view, cluster)
    if management is None:
        return DONE  # none yet, or the status names another cluster's namespace
    namespace = management["metadata"]["name"]
    namespace_object = view.get(NAMESPACE, namespace)
    if namespace_object is None or is_deleting(namespace_object):
        return DONE  # the management Cluster's controller creates it
    known = view.get(CONFIG_MAP, log.LOG_NAME, namespace)
    data = (known or {}).get("data") or {}
    changes = _changes(cluster, data, view.now)
    if known is not None and not changes:
        return DONE
    return Decision(writes=(*_archive(view, cluster, changes.get(log.LOG, "")), _write(known, namespace, changes)))


def _changes(cluster: Object, data: Mapping[str, str], now: datetime) -> dict[str, str]:
    """New values of the ConfigMap: the log with its new entries, and the messages that the next pass compares with."""
    text, changes = data.get(log.LOG, ""), dict[str, str]()
    message, failed = log.current_message(cluster)
    if message not in ("", data.get(log.LAST)):
        text = log.append_entry(text, message, failed, now)
        changes |= {log.LAST: message}
    if (entry := log.health_entry(cluster, data.get(log.HEALTH, ""))) is not None:
        message, failed = entry
        text = log.append_entry(text, message, failed, now)
        changes |= {log.HEALTH: message if failed else ""}
    return {log.LOG: text, **changes} if changes else {}


def _write(known: Object | None, namespace: str, data: dict[str, str]) -> Write:
    if known is not None:
        return Patch(ref(CONFIG_MAP, known), {"data": data}, "a new message", "", known["metadata"]["resourceVersion"])
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": log.LOG_NAME, "namespace": namespace}}
    return Create(CONFIG_MAP, config_map | {"data": data}, "the provisioning log of the cluster")


def _archive(view: View, cluster: Object, text: str) -> Iterable[Write]:
    """Update the archive before the log, which records the last message: a duplicate line is better than a lost one."""
    if not text:
        return
    if view.get(NAMESPACE, machine_names.ARCHIVE_NAMESPACE) is None:
        namespace_object = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": machine_names.ARCHIVE_NAMESPACE},
        }
        yield Create(NAMESPACE, namespace_object, "namespace of archived logs")
    yield Apply(CONFIG_MAP, log.archive_config_map(cluster, text), "the log outlives the cluster")


def _name(namespace_object: Object) -> Iterable[str]:
    return (namespace_object["metadata"]["name"],)


CONTROLLER = Controller(
    name="provisioning-log",
    kind=PROVISIONING_CLUSTER,
    reconcile=reconcile,
    predicate=changed("status.clusterName", "status.conditions", "status.ready", "metadata.deletionTimestamp"),
    watches=(
        Watches(MANAGEMENT_CLUSTER, Indexed(BY_MANAGEMENT, _name), changed("metadata.annotations")),
        Watches(NAMESPACE, Indexed(BY_MANAGEMENT, _name), changed("metadata.deletionTimestamp")),
        Watches(CONFIG_MAP, None, fields=f"metadata.name={log.LOG_NAME}"),
    ),
    indexes={PROVISIONING_CLUSTER: {BY_MANAGEMENT: management_name}},
    cluster_of=key_of_cluster,
)


# --- archive ----------------------------------------------------------------------------------------------------------


def reconcile_archive(view: View) -> Decision:
    if view.namespace != machine_names.ARCHIVE_NAMESPACE:
        return DONE  # a user's ConfigMap
    archive = view.get(CONFIG_MAP_METADATA, view.name)
    if (
        archive is None
        or labels_of(archive).get(machine_names.ARCHIVE_LABEL) != log.ARCHIVED
        or _cluster_exists(view, archive)
    ):
        return DONE
    deleted_at = parse_time(annotations_of(archive).get(log.GONE_SINCE))  # set again if it cannot be parsed
    if deleted_at is None:
        patch = {"metadata": {"annotations": {log.GONE_SINCE: timestamp(view.now)}}}
        return Decision(writes=(Patch(ref(CONFIG_MAP, archive), patch, "its cluster is gone"),))
    expires = deleted_at + timedelta(seconds=settings.parse_duration(view.setting(settings.ARCHIVE_RETENTION)))
    if expires > view.now:
        return waiting("its cluster is deleted; waiting for the end of the retention", wake_at=expires)
    return Decision(writes=(delete(CONFIG_MAP, archive, "the retention of its cluster's log has ended"),))


def _cluster_exists(view: View, archive: Object) -> bool:
    namespace, name = log.cluster_of(archive)
    cluster = view.get(PROVISIONING_CLUSTER, name, namespace)
    return cluster is not None and cluster["metadata"]["uid"] == annotations_of(archive).get(log.UID_OF)


def _archive_key(cluster: Object) -> Iterable[Key]:
    return (Key(machine_names.ARCHIVE_NAMESPACE, log.archived_name(cluster)),)


ARCHIVE = Controller(
    name="provisioning-log-archive",
    kind=CONFIG_MAP_METADATA,
    reconcile=reconcile_archive,
    watches=(Watches(PROVISIONING_CLUSTER, _archive_key, changed()),),
    predicate=changed("metadata.annotations"),
    labels=SELECTOR,
)
