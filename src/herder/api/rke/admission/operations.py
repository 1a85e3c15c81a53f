"""Validation of drain options, snapshots, services and additional manifests, which no schema can express."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from herder.api.capi.admission.total import Rule
from herder.api.capi.admission.values import section, text, value
from herder.api.cron import MIN_SNAPSHOT_INTERVAL, has_zone, interval_seconds, validate_schedule
from herder.api.rke.admission.paths import PATH, RKE
from herder.api.rke.distributions import K3S, RKE2, version_of
from herder.api.rke.services import unknown_services
from herder.engine.meta.errors import FieldError, invalid_value, required
from herder.engine.meta.kinds import Object
from herder.engine.meta.printable import printable

_SCHEDULE = f"{PATH}.etcd.snapshotScheduleCron"
_MINIMUMS = {"gracePeriod": -1, "timeout": 0, "skipWaitForDeleteTimeoutSeconds": 0}
_MAX_EVENTS = 60_000  # parsed in less than 50 ms, and several times what fits into a machine's plan
_MAX_DEPTH = 100
_NULLS = ("", "~", "null", "Null", "NULL")
_SNAPSHOT_NAME = re.compile(r"[A-Za-z0-9._-]{1,253}")
_POD_GRACE_PERIOD = "; -1 uses the pod's own grace period"


def _drains(obj: Object, old: Object | None) -> Iterator[FieldError]:
    for options in ("controlPlaneDrainOptions", "workerDrainOptions"):
        options_, before = (section(each, *RKE, "upgradeStrategy", options) for each in (obj, old or {}))
        if options_ != before:
            yield from _drain(options_, f"{PATH}.upgradeStrategy.{options}")


def _schedule(obj: Object, old: Object | None) -> Iterator[FieldError]:
    schedule, known = (value(each, *RKE, "etcd", "snapshotScheduleCron") for each in (obj, old or {}))
    if not schedule or schedule == known:
        return
    if problem := validate_schedule(schedule):
        yield invalid_value(_SCHEDULE, printable(schedule, 100), f"{problem}; 0 */6 * * * is every six hours")
    elif 0 < interval_seconds(schedule) < MIN_SNAPSHOT_INTERVAL:
        message = (
            f"must be at least {MIN_SNAPSHOT_INTERVAL} seconds, the shortest interval of five fields; such as @every 1h"
        )
        yield invalid_value(_SCHEDULE, schedule, message)
    elif has_zone(schedule) and not _has_own_schedule(obj):
        yield invalid_value(_SCHEDULE, schedule, "only K3s and RKE2 use time zones; give the time in UTC, without TZ=")


def _has_own_schedule(obj: Object) -> bool:
    version = version_of(value(obj, "spec", "kubernetesVersion") or "")
    return version is None or version.facts in (K3S, RKE2)


def _restored_snapshot(obj: Object, old: Object | None) -> Iterator[FieldError]:
    """No snapshot has another name, and the status of the operation repeats it."""
    name, known = (value(each, *RKE, "etcdSnapshotRestore", "name") for each in (obj, old or {}))
    if name and name != known and not _SNAPSHOT_NAME.fullmatch(name):
        message = (
            "must be the name of a snapshot: at most 253 letters, digits and ._-; list names with: herder snapshot list"
        )
        yield invalid_value(f"{PATH}.etcdSnapshotRestore.name", printable(name, 100), message)


def _manifests(obj: Object, old: Object | None) -> Iterator[FieldError]:
    manifest, known = (value(each, *RKE, "additionalManifest") for each in (obj, old or {}))
    if manifest and manifest != known:
        yield from _manifest(manifest, f"{PATH}.additionalManifest")


def _services(obj: Object, old: Object | None) -> Iterator[FieldError]:
    version = version_of(text(obj, "spec", "kubernetesVersion"))
    request, known = (value(each, *RKE, "rotateCertificates") or {} for each in (obj, old or {}))
    services, authorities = request.get("services") or (), bool(request.get("caCertificates"))
    has_same_services = services == (known.get("services") or ())
    if version is None or (has_same_services and authorities == bool(known.get("caCertificates"))):
        return
    if services and authorities:
        message = "must be empty: new certificate authorities renew the certificates of all services"
        yield invalid_value(f"{PATH}.rotateCertificates.services", ", ".join(map(str, services))[:100], message)
        return
    for position, service in enumerate(() if has_same_services else services):
        if problem := unknown_services(version.facts.name, [str(service)]):
            yield invalid_value(f"{PATH}.rotateCertificates.services[{position}]", service, problem)


def _drain(options: Object, path: str) -> Iterator[FieldError]:
    for field, minimum in _MINIMUMS.items():
        if (options.get(field) or 0) < minimum:
            message = f"must be at least {minimum}{_POD_GRACE_PERIOD if minimum < 0 else ''}"
            yield invalid_value(f"{path}.{field}", options[field], message)
    for hooks in ("preDrainHooks", "postDrainHooks"):
        for position, hook in enumerate(options.get(hooks) or ()):
            if not hook.get("annotation"):
                message = "the annotation on the machine's plan Secret to wait for"
                yield required(f"{path}.{hooks}[{position}].annotation", message)


def _manifest(text: str, path: str) -> Iterator[FieldError]:
    """Validate a manifest without quoting it: responses are logged, and it may contain secrets."""
    try:
        wrong = [*_wrong_documents(text)]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" in line {mark.line + 1}" if mark else ""
        yield invalid_value(path, "text", f"must be YAML: {error.problem or error.context}{where}")
    except (yaml.YAMLError, ValueError):
        yield invalid_value(path, "text", "must be YAML")
    except _TooComplex as limit:
        yield invalid_value(path, "text", f"{limit}; apply large manifests with another tool")
    else:
        for position in wrong:
            yield invalid_value(path, "text", f"document {position} must be an object with apiVersion and kind")


class _TooComplex(Exception):
    """The manifest exceeds a limit; the message names which."""


def _wrong_documents(text: str) -> Iterator[int]:
    """Yield the positions, from 1, of documents that are neither empty nor an object with apiVersion and kind.

    It reads parser events only: composing nodes recurses in C, and text such as 100,000 opening brackets would overflow
    the stack.
    """
    position, document = 0, _Document()
    for count, event in enumerate(yaml.parse(text, Loader=yaml.CSafeLoader)):
        if count == _MAX_EVENTS:
            raise _TooComplex(f"has more than {_MAX_EVENTS} tokens")
        if isinstance(event, yaml.DocumentStartEvent):
            position, document = position + 1, _Document()
        elif isinstance(event, yaml.DocumentEndEvent):
            if not document.is_empty and not document.keys >= {"apiVersion", "kind"}:
                yield position
        else:
            document.read(event)


class _Document:
    """The top-level keys of one YAML document."""

    def __init__(self) -> None:
        self.is_empty = False  # e.g. between two `---` lines
        self.keys: set[str] = set()
        self._is_mapping = False
        self._depth = 0
        self._entries = 0  # keys and values of the root, alternating

    def read(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.CollectionEndEvent):
            self._depth -= 1
        if not isinstance(event, yaml.NodeEvent):
            return
        if self._depth == 0:
            self.is_empty = isinstance(event, yaml.ScalarEvent) and not event.style and event.value in _NULLS
            self._is_mapping = isinstance(event, yaml.MappingStartEvent)
        elif self._depth == 1:
            if self._is_mapping and self._entries % 2 == 0 and isinstance(event, yaml.ScalarEvent):
                self.keys.add(event.value)
            self._entries += 1
        self._depth += isinstance(event, yaml.CollectionStartEvent)
        if self._depth > _MAX_DEPTH:
            raise _TooComplex(f"is nested more than {_MAX_DEPTH} levels deep")


RULES: tuple[tuple[str, Rule], ...] = (
    (f"{PATH}.upgradeStrategy", _drains),
    (_SCHEDULE, _schedule),
    (f"{PATH}.etcdSnapshotRestore.name", _restored_snapshot),
    (f"{PATH}.additionalManifest", _manifests),
    (f"{PATH}.rotateCertificates", _services),
)
