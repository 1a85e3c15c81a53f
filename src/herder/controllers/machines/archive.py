"""Delete archived logs of machines after their retention period."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from herder.api import settings
from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import DEFINITION
from herder.api.capi.names import annotations_of, labels_of
from herder.api.machines import archive, names
from herder.api.machines.kinds import MACHINE_GROUP, VERSION
from herder.api.times import parse_time
from herder.api.writes import delete, ref
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Patch, waiting
from herder.engine.runtime.handlers import DynamicWatches, Watches, changed
from herder.engine.runtime.view import View

DELETED_SINCE = "machine.herder.io/gone-since"


def reconcile(view: View) -> Decision:
    if view.namespace != names.ARCHIVE_NAMESPACE:
        return DONE  # A ConfigMap in a user's namespace; its annotations could name any kind.
    log = view.get(archive.CONFIG_MAP_METADATA, view.name)
    if log is None or labels_of(log).get(names.ARCHIVE_LABEL) != archive.MACHINE_LOG or _machine_exists(view, log):
        return DONE
    since = parse_time(annotations_of(log).get(DELETED_SINCE))  # an unparsable value is replaced
    if since is None:
        recorded = {"metadata": {"annotations": {DELETED_SINCE: timestamp(view.now)}}}
        return Decision(writes=(Patch(ref(archive.CONFIG_MAP, log), recorded, "record when its machine was deleted"),))
    at = since + timedelta(seconds=settings.parse_duration(view.setting(settings.ARCHIVE_RETENTION)))
    if at > view.now:
        return waiting("the machine is deleted; its log is kept for the retention period", wake_at=at)
    return Decision(writes=(delete(archive.CONFIG_MAP, log, "the retention period of the log is over"),))


def _machine_exists(view: View, log: Object) -> bool:
    annotations = annotations_of(log)
    kind = Kind(MACHINE_GROUP, VERSION, annotations.get(archive.KIND_OF, ""), annotations.get(archive.PLURAL_OF, ""))
    if view.get(DEFINITION, f"{kind.plural}.{kind.group}") is None:
        return False
    machine = view.get(
        kind.metadata_only(), annotations.get(archive.NAME_OF, ""), annotations.get(archive.NAMESPACE_OF, "")
    )
    return machine is not None and machine["metadata"]["uid"] == annotations.get(archive.UID_OF)


def _log_of(machine: Object) -> Iterable[Key]:
    meta = machine["metadata"]
    if machine["apiVersion"].startswith(f"{MACHINE_GROUP}/"):
        yield Key(names.ARCHIVE_NAMESPACE, names.archived_log(meta["namespace"], meta["name"]))


CONTROLLER = Controller(
    name="machine-archive",
    kind=archive.CONFIG_MAP_METADATA,
    reconcile=reconcile,
    watches=(Watches(DEFINITION),),
    predicate=changed("metadata.annotations"),
    labels=archive.SELECTOR,
    dynamic_watches=DynamicWatches(_log_of, changed()),
)
