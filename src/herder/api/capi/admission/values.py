"""Read and set nested values of objects that no schema has checked yet."""

from __future__ import annotations

from typing import Any

from herder.api.capi.names import CLUSTER_NAME
from herder.engine.meta.kinds import Object


def value(obj: Object, *path: str) -> Any:
    """Return the value at the path, or None."""
    found: Any = obj
    for name in path:
        if not isinstance(found, dict):
            return None
        found = found.get(name)
    return found


def section(obj: Object, *path: str) -> Object:
    """Return the mapping at the path; an empty one if there is none."""
    found = value(obj, *path)
    return found if isinstance(found, dict) else {}


def text(obj: Object, *path: str) -> str:
    found = value(obj, *path)
    return found if isinstance(found, str) else ""


def with_value(obj: Object, given: Any, *path: str) -> Object:
    """Return a copy with this value at the path. A parent of another type is kept: the schema rejects it."""
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
    """Label the object with its cluster's name."""
    name = text(obj, "spec", "clusterName")
    return with_value(obj, name, "metadata", "labels", CLUSTER_NAME) if name else obj


def with_version_prefix(obj: Object, *path: str) -> Object:
    """Add the `v` prefix that users may omit from versions."""
    version = text(obj, *path)
    return with_value(obj, f"v{version}", *path) if version and not version.startswith("v") else obj


def count_values(found: Any, most: int) -> int:
    """Count all mappings, lists and items, stopping above `most`."""
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
