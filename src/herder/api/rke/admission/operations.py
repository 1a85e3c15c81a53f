"""How a cluster is changed, saved and filled: what no schema can say of drains, schedules and manifests."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from herder.api.capi.admission.total import Rule
from herder.api.capi.admission.values import section, value
from herder.api.rke.admission.places import PATH, RKE
from herder.api.rke.cron import problem_of
from herder.engine.meta.errors import FieldError, invalid_value, required
from herder.engine.meta.kinds import Object

_LOWEST = {"gracePeriod": -1, "timeout": 0, "skipWaitForDeleteTimeoutSeconds": 0}
_MOST_EVENTS = 60_000  # what is read in less than 50 ms, and several times what fits into a machine's plan
_DEEPEST = 100
_NULLS = ("", "~", "null", "Null", "NULL")
_AS_THE_POD_SAYS = "; -1 is what the pod itself says"


def _drains(obj: Object, old: Object | None) -> Iterator[FieldError]:
    for options in ("controlPlaneDrainOptions", "workerDrainOptions"):
        asked, before = (section(each, *RKE, "upgradeStrategy", options) for each in (obj, old or {}))
        if asked != before:
            yield from _drain(asked, f"{PATH}.upgradeStrategy.{options}")


def _schedule(obj: Object, old: Object | None) -> Iterator[FieldError]:
    schedule, known = (value(each, *RKE, "etcd", "snapshotScheduleCron") for each in (obj, old or {}))
    if schedule and schedule != known and (problem := problem_of(schedule)):
        yield invalid_value(f"{PATH}.etcd.snapshotScheduleCron", schedule, f"{problem}; 0 */6 * * * is every six hours")


def _manifests(obj: Object, old: Object | None) -> Iterator[FieldError]:
    manifest, known = (value(each, *RKE, "additionalManifest") for each in (obj, old or {}))
    if manifest and manifest != known:
        yield from _manifest(manifest, f"{PATH}.additionalManifest")


def _drain(options: Object, path: str) -> Iterator[FieldError]:
    for field, lowest in _LOWEST.items():
        if (options.get(field) or 0) < lowest:
            message = f"must be at least {lowest}{_AS_THE_POD_SAYS if lowest < 0 else ''}"
            yield invalid_value(f"{path}.{field}", options[field], message)
    for hooks in ("preDrainHooks", "postDrainHooks"):
        for position, hook in enumerate(options.get(hooks) or ()):
            if not hook.get("annotation"):
                message = "what is to be waited for on the plan Secret of a machine"
                yield required(f"{path}.{hooks}[{position}].annotation", message)


def _manifest(text: str, path: str) -> Iterator[FieldError]:
    """The message never quotes the text: answers are logged, and there may be secrets in it."""
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
            yield invalid_value(path, "text", f"its document {position} must be an object with apiVersion and kind")


class _TooComplex(Exception):
    """Which limit of a manifest is exceeded."""


def _wrong_documents(text: str) -> Iterator[int]:
    """Positions, from 1, of documents that are neither empty nor an object with apiVersion and kind.

    Only events are read, and counted: composing nodes recurses in C, and text such as 100,000 opening brackets would
    overflow the stack of the process.
    """
    position, document = 0, _Document()
    for count, event in enumerate(yaml.parse(text, Loader=yaml.CSafeLoader)):
        if count == _MOST_EVENTS:
            raise _TooComplex(f"has more than {_MOST_EVENTS} tokens")
        if isinstance(event, yaml.DocumentStartEvent):
            position, document = position + 1, _Document()
        elif isinstance(event, yaml.DocumentEndEvent):
            if not document.is_empty and not document.keys >= {"apiVersion", "kind"}:
                yield position
        else:
            document.read(event)


class _Document:
    """What one YAML document has at its top."""

    def __init__(self) -> None:
        self.is_empty = False  # as between two lines of ---
        self.keys: set[str] = set()
        self._is_mapping = False
        self._depth = 0
        self._entries = 0  # keys and values of the root, in turn

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
        if self._depth > _DEEPEST:
            raise _TooComplex(f"is nested more than {_DEEPEST} levels deep")


PARTS: tuple[tuple[str, Rule], ...] = (
    (f"{PATH}.upgradeStrategy", _drains),
    (f"{PATH}.etcd.snapshotScheduleCron", _schedule),
    (f"{PATH}.additionalManifest", _manifests),
)
