"""What objects there are of a driver's kinds, by their names alone.

Caches tell when one goes. That there is none is only believed when the server itself says so: a cache may not yet have
what was made long before the driver was switched off.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from herder.api.capi.kinds import DEFINITION
from herder.api.machines.kinds import CONFIG_GROUP, MACHINE_GROUP, driver_of, kinds_of
from herder.api.machines.known import DRIVER_LABEL
from herder.engine.control.cache import Change
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import DONE, Decision, Effect, waiting
from herder.engine.runtime.view import View

_GROUPS = (CONFIG_GROUP, MACHINE_GROUP)
FRESH_SECONDS = 5
"""So long an answer of the server is believed."""


@dataclass(frozen=True, slots=True)
class Left:
    names: Sequence[str] = ()  # each as `Kind namespace/name`
    known: bool = True  # False while the server is asked
    needs: Decision = DONE  # the question, or when it is to be asked again


def objects_left(view: View, driver: str, since: Sequence[Object | None]) -> Left:
    """`since` are the objects that say that the driver is to go: an answer counts only while they stay as they are."""
    kinds = [kind for kind in kinds_of(driver).all if view.get(DEFINITION, f"{kind.plural}.{kind.group}") is not None]
    if not kinds:
        return Left()
    seen = [name for kind in kinds for name in _seen(view, kind)]
    return Left(seen) if seen else _asked(view, driver, kinds, since)


def _asked(view: View, driver: str, kinds: Sequence[Kind], since: Sequence[Object | None]) -> Left:
    moment = int(view.now.timestamp()) // FRESH_SECONDS
    revisions = [each["metadata"]["resourceVersion"] if each is not None else "" for each in since]
    key = ("list-names", str(view.key), *revisions, str(moment))
    result = view.result(key)
    if result is None or not result.done:
        question = f"whether there are objects of driver {driver}'s kinds"
        asks = Decision(effects=(Effect("list-names", key, {"kinds": kinds}, question),))
        return Left(known=False, needs=asks + waiting(f"the server is asked {question}"))
    again = datetime.fromtimestamp(
        (moment + 1) * FRESH_SECONDS, UTC
    )  # no cache has them yet, so none tells of their end
    return Left(result.value, needs=Decision(wake_at=again) if result.value else DONE)


def _seen(view: View, kind: Kind) -> Iterable[str]:
    for obj in view.select(kind.metadata_only()):
        yield f"{kind.kind} {obj['metadata']['namespace']}/{obj['metadata']['name']}"


def driver_of_object(obj: Object) -> str | None:
    """Of an object of any kind: the driver whose kind it is of."""
    group = str(obj.get("apiVersion", "")).rpartition("/")[0]
    return driver_of(obj["kind"]) if group in _GROUPS else None


def driver_of_definition(definition: Object) -> Iterable[str]:
    """Indexer: the driver that a definition was made for."""
    group = definition["metadata"]["name"].partition(".")[2]
    driver = (definition["metadata"].get("labels") or {}).get(DRIVER_LABEL)
    return (driver,) if driver and group in _GROUPS else ()


def gone(change: Change) -> bool:
    """What waits until no objects are left waits for the last of them to go."""
    return change.new is None
