"""The field table, and the values of a Cluster that it refuses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from herder.api.capi.admission.values import text, value
from herder.api.rke.distributions import DISTRIBUTIONS, version_of
from herder.api.rke.fields import cluster, configuration, pools
from herder.api.rke.fields.rows import Effect, Row
from herder.engine.meta.kinds import Object

TABLE: Sequence[Row] = tuple(sorted((*cluster.ROWS, *configuration.ROWS, *pools.ROWS), key=lambda row: row.path))

IMPORTED = "imported"
"""Stands for the distribution of a cluster that is not provisioned here: what all distributions refuse is refused."""

_REFUSED: dict[str, list[tuple[Row, tuple[str, ...]]]] = {
    name: [
        (row, tuple(row.path.replace("[]", ".[]").split("."))) for row in TABLE if row.effects[name] is Effect.REFUSED
    ]
    for name in (each.name for each in DISTRIBUTIONS)
}
_REFUSED[IMPORTED] = [
    (row, path)
    for row, path in _REFUSED[DISTRIBUTIONS[0].name]
    if all(effect is Effect.REFUSED for effect in row.effects.values()) and not row.path.startswith("spec.rkeConfig.")
]


class RefusedValue(NamedTuple):
    """A value that the table refuses."""

    field: str  # its path in the object
    identity: str  # the same with names of list entries instead of positions
    value: Any
    reason: str  # why, and what to do instead


def distribution_of(cluster: Object) -> str:
    """The column of the table for this Cluster; "" if its version names no distribution."""
    if value(cluster, "spec", "rkeConfig") is None:
        return IMPORTED
    version = version_of(text(cluster, "spec", "kubernetesVersion"))
    return version.facts.name if version else ""


def refused_values(cluster: Object) -> Iterator[RefusedValue]:
    """All values that the distribution of this Cluster does not support. Empty values request nothing."""
    distribution = distribution_of(cluster)
    for row, path in _REFUSED.get(distribution, ()):
        for field, identity, found in _values(cluster, path):
            if not _is_off(found) and found not in row.off:
                where = "" if distribution == IMPORTED else f" on {distribution}"
                yield RefusedValue(field, identity, found, f"not supported{where}: {row.reason_on(distribution)}")


def _values(found: Any, path: Sequence[str], field: str = "", identity: str = "") -> Iterator[tuple[str, str, Any]]:
    """The values at a path, with the path of each."""
    if not path:
        yield field, identity, found
    elif path[0] != "[]":
        inner = found.get(path[0]) if isinstance(found, dict) else None
        dot = "." if field else ""
        if inner is not None:
            yield from _values(inner, path[1:], f"{field}{dot}{path[0]}", f"{identity}{dot}{path[0]}")
    elif isinstance(found, dict):
        for key, entry in found.items():
            yield from _values(entry, path[1:], f"{field}[{key}]", f"{identity}[{key}]")
    elif isinstance(found, list):
        for position, entry in enumerate(found):
            name = text(entry, "name") if isinstance(entry, dict) else ""
            yield from _values(entry, path[1:], f"{field}[{position}]", f"{identity}[{name or position}]")


def _is_off(found: Any) -> bool:
    """Whether a value is empty: clients write false, 0, "" and empty objects for fields that nobody has set."""
    if isinstance(found, dict):
        return all(map(_is_off, found.values()))
    if isinstance(found, list):
        return all(map(_is_off, found))
    return not found
