"""The log of each cluster that is built here: a line whenever there is news, kept for a while after it is gone."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from herder.api import settings
from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import NAMESPACE
from herder.api.capi.names import annotations_of, is_deleting, labels_of
from herder.api.machines import names as machine_names
from herder.api.machines.archive import CONFIG_MAP, CONFIG_MAP_METADATA, SELECTOR
from herder.api.management.clusters import BY_MANAGEMENT, is_provisioned_here, management_name
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.moments import moment
from herder.api.rke import log
from herder.api.writing import delete, ref
from herder.controllers.provisioning.generation.reports import management_of
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Apply, Create, Decision, Patch, Write, waiting
from herder.engine.runtime.handlers import Indexed, Watches, changed
from herder.engine.runtime.view import View

# --- writing it -----------------------------------------------------------------------------------------------------


def reconcile(view: View) -> Decision:
    cluster = view.get(PROVISIONING_CLUSTER, view.name)
    if cluster is None or not is_provisioned_here(cluster):
        return DONE
    management = management_of(view, cluster)
    if management is None:
        return DONE  # none yet, or a status that names the namespace of someone else
    home = management["metadata"]["name"]
    space = view.get(NAMESPACE, home)
    if space is None or is_deleting(space):
        return DONE  # the management Cluster's controller makes it, and it goes last
    known = view.get(CONFIG_MAP, log.LOG_NAME, home)
    data = (known or {}).get("data") or {}
    message, failed = log.news(cluster)
    if known is not None and message in ("", data.get(log.LAST)):
        return DONE
    text = log.appended(data.get(log.LOG, ""), message, failed, view.now) if message else ""
    return Decision(writes=(*_keep(view, cluster, text), _write(known, home, text, message)))


def _write(known: Object | None, home: str, text: str, message: str) -> Write:
    data = {log.LOG: text, log.LAST: message} if message else {}
    if known is not None:
        return Patch(ref(CONFIG_MAP, known), {"data": data}, "news", "", known["metadata"]["resourceVersion"])
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": log.LOG_NAME, "namespace": home}}
    return Create(CONFIG_MAP, made | {"data": data}, "what becomes of the cluster is written down")


def _keep(view: View, cluster: Object, text: str) -> Iterable[Write]:
    """Before the log itself, which says what has been told: a line that is written twice is better than one lost."""
    if not text:
        return
    if view.get(NAMESPACE, machine_names.ARCHIVE_NAMESPACE) is None:
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": machine_names.ARCHIVE_NAMESPACE}}
        yield Create(NAMESPACE, space, "logs outlive what they are about")
    yield Apply(CONFIG_MAP, log.archived(cluster, text), "the log outlives the cluster")


def _name(space: Object) -> Iterable[str]:
    return (space["metadata"]["name"],)


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
)


# --- keeping it -----------------------------------------------------------------------------------------------------


def reconcile_archive(view: View) -> Decision:
    if view.namespace != machine_names.ARCHIVE_NAMESPACE:
        return DONE  # of a user
    kept = view.get(CONFIG_MAP_METADATA, view.name)
    if kept is None or labels_of(kept).get(machine_names.ARCHIVE_LABEL) != log.ARCHIVED or _is_there(view, kept):
        return DONE
    since = moment(annotations_of(kept).get(log.GONE_SINCE))  # noted anew where it cannot be read
    if since is None:
        noted = {"metadata": {"annotations": {log.GONE_SINCE: timestamp(view.now)}}}
        return Decision(writes=(Patch(ref(CONFIG_MAP, kept), noted, "its cluster is gone"),))
    at = since + timedelta(seconds=settings.seconds(view.setting(settings.ARCHIVE_RETENTION)))
    if at > view.now:
        return waiting("its cluster is gone, and the log is kept for a while", wake_at=at)
    return Decision(writes=(delete(CONFIG_MAP, kept, "its cluster is long gone"),))


def _is_there(view: View, kept: Object) -> bool:
    namespace, name = log.cluster_of(kept)
    cluster = view.get(PROVISIONING_CLUSTER, name, namespace)
    return cluster is not None and cluster["metadata"]["uid"] == annotations_of(kept).get(log.UID_OF)


def _its_archive(cluster: Object) -> Iterable[Key]:
    return (Key(machine_names.ARCHIVE_NAMESPACE, log.archived_name(cluster)),)


ARCHIVE = Controller(
    name="provisioning-log-archive",
    kind=CONFIG_MAP_METADATA,
    reconcile=reconcile_archive,
    watches=(Watches(PROVISIONING_CLUSTER, _its_archive, changed()),),
    predicate=changed("metadata.annotations"),
    labels=SELECTOR,
)
