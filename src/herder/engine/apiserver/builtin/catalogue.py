"""The table of built-in resources, made from the discovery data and what is known by hand of each kind."""

from __future__ import annotations

from herder.engine.apiserver.builtin import data
from herder.engine.apiserver.builtin.types import BuiltinType
from herder.engine.apiserver.resources import Resource, ScalePaths, Subresource, Version
from herder.engine.apiserver.strategy import PLAIN
from herder.engine.meta.kinds import GroupResource, GroupVersionKind

_SCALE = ScalePaths(".spec.replicas", ".status.replicas", ".status.selector")
_STORED_AS = {GroupResource("events.k8s.io", "events"): GroupResource("", "events")}


def resources() -> list[Resource]:
    """All built-in resources. Cheap: no type is loaded before a request needs it."""
    return [_resource(row) for row in data.index().resources]


def _resource(row: data.ResourceRow) -> Resource:
    name = GroupResource(row.group, row.plural)
    return Resource(
        group=row.group,
        plural=row.plural,
        singular=row.singular,
        kind=row.kind,
        namespaced=row.namespaced,
        versions={version: _version(row, version) for version in row.versions},
        storage_version=row.versions[0],
        list_kind=f"{row.kind}List",
        short_names=row.short_names,
        categories=row.categories,
        verbs=row.verbs,
        strategy=PLAIN,
        subresources=_subresources(row),
        stored_as=_STORED_AS.get(name),
    )


def _version(row: data.ResourceRow, version: str) -> Version:
    return Version(
        name=version,
        model=BuiltinType(GroupVersionKind(row.group, version, row.kind)),
        status="status" in row.subresources,
        scale=_SCALE if "scale" in row.subresources else None,
    )


def _subresources(row: data.ResourceRow) -> dict[str, Subresource]:
    return {}
