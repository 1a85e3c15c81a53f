"""Nested values of objects whose shape nobody has checked yet: read without surprises, set in copies."""

from __future__ import annotations

from typing import Any

from herder.api.capi.names import CLUSTER_NAME
from herder.engine.meta.kinds import Object


def value(obj: Object, *path: str) -> Any:
    """What lies at the path, or None."""
    found: Any = obj
    for name in path:
        if not isinstance(found, dict):
            return None
        found = found.get(name)
    return found


def section(obj: Object, *path: str) -> Object:
    """The mapping at the path; an empty one where there is none."""
    found = value(obj, *path)
    return found if isinstance(found, dict) else {}


def text(obj: Object, *path: str) -> str:
    found = value(obj, *path)
    return found if isinstance(found, str) else ""


def with_value(obj: Object, given: Any, *path: str) -> Object:
    """A copy with this value at the path. Something of another shape on the way stays: the schema will refuse it."""
    name, *rest = path
    if not rest:
        return obj if obj.get(name) == given else {**obj, name: given}
    inner = obj.get(name)
    if inner is not None and not isinstance(inner, dict):
        return obj
    changed = with_value(inner or {}, given, *rest)
    return obj if changed is inner else {**obj, name: changed}


def with_default(obj: Object, given: Any, *path: str) -> Object:
    return obj if value(obj, *path) is not None else with_value(obj, given, *path)


def with_cluster_label(obj: Object) -> Object:
    """Every object of a cluster can be found by its cluster's name."""
    name = text(obj, "spec", "clusterName")
    return with_value(obj, name, "metadata", "labels", CLUSTER_NAME) if name else obj


def with_version_prefix(obj: Object, *path: str) -> Object:
    """People write 1.36.1 as well as v1.36.1; what is kept is the latter."""
    version = text(obj, *path)
    return with_value(obj, f"v{version}", *path) if version and not version.startswith("v") else obj


def count_values(found: Any, most: int) -> int:
    """How many values these are, each mapping, list and item counted; it stops counting above `most`."""
    count, rest = 1, [found]
    while rest and count <= most:
        each = rest.pop()
        if isinstance(each, dict):
            count += len(each)
            rest.extend(each.values())
        elif isinstance(each, list):
            count += len(each)
            rest.extend(each)
    return count
