"""Remaining objects of a driver's kinds, by name.

Informers report deletions. That none exist is only trusted if the API server confirms it: a cache may lack objects that
were created long before the driver was deactivated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from herder.api.capi.kinds import DEFINITION
from herder.api.machines.drivers.known import DRIVER_LABEL
from herder.api.machines.kinds import CONFIG_GROUP, MACHINE_GROUP, driver_of, kinds_of
from herder.engine.control.cache import Change
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import DONE, Decision, Effect, waiting
from herder.engine.runtime.view import View

_GROUPS = (CONFIG_GROUP, MACHINE_GROUP)
FRESH_SECONDS = 5
"""How long an answer of the API server is valid."""


@dataclass(frozen=True, slots=True)
class RemainingObjects:
    """Names of the remaining objects, or the query for them."""

    names: Sequence[str] = ()  # as `Kind namespace/name`
    known: bool = True  # False while the query is under way
    needs: Decision = DONE  # the query, or when to repeat it


def find_remaining(view: View, driver: str, since: Sequence[Object | None]) -> RemainingObjects:
    """`since` are the objects that say that the driver is inactive: an answer is valid only for their current
    revisions."""
    kinds = [kind for kind in kinds_of(driver).all if view.get(DEFINITION, f"{kind.plural}.{kind.group}") is not None]
    if not kinds:
        return RemainingObjects()
    seen = [name for kind in kinds for name in _cached_names(view, kind)]
    return RemainingObjects(seen) if seen else _query_names(view, driver, kinds, since)


def _query_names(view: View, driver: str, kinds: Sequence[Kind], since: Sequence[Object | None]) -> RemainingObjects:
    moment = int(view.now.timestamp()) // FRESH_SECONDS
    revisions = [each["metadata"]["resourceVersion"] if each is not None else "" for each in since]
    key = ("list-names", str(view.key), *revisions, str(moment))
    result = view.result(key)
    if result is None or not result.done:
        purpose = f"whether objects of driver {driver}'s kinds exist"
        query = Decision(effects=(Effect("list-names", key, {"kinds": kinds}, purpose),))
        return RemainingObjects(known=False, needs=query + waiting(f"checking {purpose}"))
    again = datetime.fromtimestamp(
        (moment + 1) * FRESH_SECONDS, UTC
    )  # No cache has these objects yet, so no event reports their deletion.
    return RemainingObjects(result.value, needs=Decision(wake_at=again) if result.value else DONE)


def _cached_names(view: View, kind: Kind) -> Iterable[str]:
    for obj in view.select(kind.metadata_only()):
        yield f"{kind.kind} {obj['metadata']['namespace']}/{obj['metadata']['name']}"


def driver_of_object(obj: Object) -> str | None:
    """The driver whose kind an object has."""
    group = str(obj.get("apiVersion", "")).rpartition("/")[0]
    return driver_of(obj["kind"]) if group in _GROUPS else None


def driver_of_definition(definition: Object) -> Iterable[str]:
    """Indexer: the driver of a CRD."""
    group = definition["metadata"]["name"].partition(".")[2]
    driver = (definition["metadata"].get("labels") or {}).get(DRIVER_LABEL)
    return (driver,) if driver and group in _GROUPS else ()


def is_deletion(change: Change) -> bool:
    """Predicate: what waits until no objects remain waits for their deletion."""
    return change.new is None
