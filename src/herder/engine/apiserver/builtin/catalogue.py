"""Table of the built-in resources, from the generated discovery data and hand-written properties of kinds."""

from __future__ import annotations

from herder.engine.apiserver.builtin import conversions, data, subresources
from herder.engine.apiserver.builtin.strategies import strategy_for
from herder.engine.apiserver.builtin.types import BuiltinType
from herder.engine.apiserver.registry.resources import Resource, ScalePaths, Subresource, Version
from herder.engine.apiserver.request.handler_call import VirtualCall
from herder.engine.meta.errors import BadRequest
from herder.engine.meta.kinds import GroupResource, GroupVersionKind, Object

_SCALE = ScalePaths(".spec.replicas", ".status.replicas", ".spec.selector")
_DEPRECATED = {
    GroupResource("", "endpoints"): "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
    GroupResource("", "componentstatuses"): "v1 ComponentStatus is deprecated in v1.19+",
}
_STORED_AS = {GroupResource("events.k8s.io", "events"): GroupResource("", "events")}
_CONVERSIONS = {
    GroupResource("events.k8s.io", "events"): conversions.convert_events,
    GroupResource("autoscaling", "horizontalpodautoscalers"): conversions.convert_autoscalers,
}
_BINDINGS = GroupResource("", "bindings")


async def _reject_binding(obj: Object, call: VirtualCall) -> Object:
    """Reject the deprecated bindings resource. It is listed in discovery like in kube-apiserver."""
    raise BadRequest("bindings: not supported; create the binding subresource of the pod")


def resources() -> list[Resource]:
    """Return all built-in resources. Cheap: types are loaded by the first request that needs them."""
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
        strategy=strategy_for(name, _status_struct(row)),
        subresources=_subresources(row),
        stored_as=_STORED_AS.get(name),
        convert=_CONVERSIONS.get(name),
        virtual=_reject_binding if name == _BINDINGS else None,
    )


def _version(row: data.ResourceRow, version: str) -> Version:
    return Version(
        name=version,
        model=BuiltinType(GroupVersionKind(row.group, version, row.kind)),
        status="status" in row.subresources,
        deprecation=_DEPRECATED.get(GroupResource(row.group, row.plural), ""),
        scale=_SCALE if "scale" in row.subresources else None,
    )


def _status_struct(row: data.ResourceRow) -> str:
    if "status" not in row.subresources:
        return ""
    return f"{data.package_of(row.group, row.versions[0])}.{row.kind}Status"


def _subresources(row: data.ResourceRow) -> dict[str, Subresource]:
    handlers = subresources.HANDLERS.get(GroupResource(row.group, row.plural), {})
    return {
        name: Subresource(name, GroupVersionKind(*row.subresources[name].kind), row.subresources[name].verbs, handler)
        for name, handler in handlers.items()
    }
