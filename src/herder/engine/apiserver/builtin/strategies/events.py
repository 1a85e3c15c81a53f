"""Events of both groups, core and events.k8s.io. They are stored once, as core Events."""

from __future__ import annotations

from herder.engine.apiserver.builtin.strategies.base import BuiltinStrategy
from herder.engine.apiserver.builtin.strategies.checks import Errors, checked, unchanged
from herder.engine.apiserver.registry.strategy import Context
from herder.engine.meta import names
from herder.engine.meta.errors import invalid_value, required
from herder.engine.meta.kinds import Object

GROUP_VERSION = "events.k8s.io/v1"
# Fields with different names in the two groups.
_CORE_NAMES = {
    "regarding": "involvedObject", "note": "message", "reportingController": "reportingComponent",
    "deprecatedSource": "source", "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp", "deprecatedCount": "count",
}  # fmt: skip
_NEW_NAMES = {core: new for new, core in _CORE_NAMES.items()}
# Fields that Go encodes even if they are empty, by group.
_ALWAYS_CORE: Object = {
    "involvedObject": {}, "source": {}, "firstTimestamp": None, "lastTimestamp": None, "eventTime": None,
    "reportingComponent": "", "reportingInstance": "",
}  # fmt: skip
_ALWAYS_NEW: Object = {
    "regarding": {}, "deprecatedSource": {}, "deprecatedFirstTimestamp": None, "deprecatedLastTimestamp": None,
    "eventTime": None,
}  # fmt: skip


def to_core(event: Object) -> Object:
    """Convert an events.k8s.io Event to a core Event."""
    renamed = {_CORE_NAMES.get(key, key): value for key, value in event.items()}
    return {**_always(_ALWAYS_CORE, renamed), **renamed, "apiVersion": "v1"}


def from_core(event: Object) -> Object:
    """Convert a core Event to an events.k8s.io Event."""
    renamed = {_NEW_NAMES.get(key, key): value for key, value in event.items()}
    for key in ("reportingController", "reportingInstance"):
        if renamed.get(key) == "":
            del renamed[key]
    return {**_always(_ALWAYS_NEW, renamed), **renamed, "apiVersion": GROUP_VERSION}


def _always(fields: Object, present: Object) -> Object:
    return {
        key: dict(value) if isinstance(value, dict) else value for key, value in fields.items() if key not in present
    }


class EventStrategy(BuiltinStrategy):
    """Strategy of Events. Hooks receive them in the requested group; `new` is events.k8s.io."""

    def __init__(self, *, new: bool) -> None:
        super().__init__(name_check=None if new else names.path_segment)
        self.new = new

    def problems(self, obj: Object, context: Context) -> Errors:
        event = to_core(obj) if self.new else obj
        if event.get("eventTime") is None:
            yield from _old_style(event)
        else:
            reporter = "reportingController" if self.new else "reportingComponent"
            yield from _new_style(event, reporter)
        if self.new and not obj["metadata"].get("resourceVersion"):
            yield from _strict(event)

    def validate_update(self, obj: Object, old: Object, context: Context) -> Errors:
        if not self.new:
            return
        new, before = to_core(obj), to_core(old) if old.get("apiVersion") == GROUP_VERSION else old
        for key in (
            "involvedObject", "reason", "message", "source", "firstTimestamp", "lastTimestamp", "count", "type",
            "eventTime", "action", "related",
        ):  # fmt: skip
            yield from unchanged(new.get(key), before.get(key), key)

    def fields(self, obj: Object) -> dict[str, str]:
        event = to_core(obj) if self.new and obj.get("apiVersion") == GROUP_VERSION else obj
        regarding, source = event.get("involvedObject") or {}, event.get("source") or {}
        status = {
            f"involvedObject.{key}": regarding.get(key, "")
            for key in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
        }
        component = event.get("reportingComponent") or ""
        return {
            **status,
            **({f"regarding.{key[15:]}": value for key, value in status.items()} if self.new else {}),
            "reason": event.get("reason", ""),
            "reportingComponent": component,
            "reportingController": component,
            "source": source.get("component") or component,
            "type": event.get("type", ""),
        }


def _old_style(event: Object) -> Errors:
    namespace, regarding = event["metadata"].get("namespace", ""), event.get("involvedObject") or {}
    named = regarding.get("namespace", "")
    if (named and named != namespace) or (not named and namespace not in {"", "default"}):
        yield invalid_value("involvedObject.namespace", named, "does not match event.namespace")


def _new_style(event: Object, reporter: str) -> Errors:
    namespace = event["metadata"].get("namespace", "")
    named = (event.get("involvedObject") or {}).get("namespace", "")
    if not named and namespace not in {"default", "kube-system"}:
        yield invalid_value("involvedObject.namespace", named, "does not match event.namespace")
    controller = event.get("reportingComponent") or ""
    if not controller:
        yield required(reporter)
    yield from checked(controller, reporter, names.qualified_name)
    for key, limit in (("reportingInstance", 128), ("action", 128), ("reason", 128)):
        if not event.get(key):
            yield required(key)
        elif len(event[key]) > limit:
            yield invalid_value(key, "", f"can have at most {limit} characters")
    if len(event.get("message") or "") > 1024:
        yield invalid_value("message", "", "can have at most 1024 characters")


def _strict(event: Object) -> Errors:
    """Validate new events as events.k8s.io requires."""
    if event.get("eventTime") is None:
        yield required("eventTime")
    if event.get("type") not in {"Normal", "Warning"}:
        yield invalid_value("type", "", f"has invalid value: {event.get('type', '')}")
    for key in ("firstTimestamp", "lastTimestamp", "count", "source"):
        if event.get(key):
            yield invalid_value(key, "", "needs to be unset")
    series = event.get("series")
    if series is not None and series.get("count", 0) < 2:
        yield invalid_value("series.count", "", "should be at least 2")
