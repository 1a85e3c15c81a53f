"""The scale subresource: a Scale object whose spec.replicas is stored in a field of its parent."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from herder.engine.apiserver import tables
from herder.engine.apiserver.context import RequestContext
from herder.engine.apiserver.registry.conversion import to_version
from herder.engine.apiserver.registry.managed_fields import server_side_apply, set_managed_fields, update_managed_fields
from herder.engine.apiserver.registry.resources import Resource, Version
from herder.engine.apiserver.registry.storage_codec import decode, deep_copy
from herder.engine.apiserver.request.body import Body
from herder.engine.apiserver.request.decode import decode_object
from herder.engine.apiserver.request.options import WriteOptions, write_options
from herder.engine.apiserver.response.render import render_response
from herder.engine.apiserver.verbs.patch import (
    APPLY_PATCH,
    apply_patch,
    decode_patched,
    patch_type,
    read_applied,
    read_patch,
)
from herder.engine.apiserver.verbs.write_path import ObjectChange, change_object, check_name
from herder.engine.meta.errors import BadRequest, invalid, invalid_value, not_found
from herder.engine.meta.kinds import GroupVersionKind, Object
from herder.engine.meta.selectors import label_selector_from_object
from herder.engine.patch.ssa.scale import ReplicasPaths, entries_for_parent, entries_for_scale
from herder.engine.store import Record
from herder.engine.wire import Response

SCALE = GroupVersionKind("autoscaling", "v1", "Scale")


async def get_scale(call: RequestContext) -> Response:
    """Return the Scale of an object."""
    record = call.deps.store.get(call.key)
    if record is None:
        raise not_found(call.group_resource, call.info.name)
    (parent,) = await to_version(call, [decode(record)])
    return _render(call, parent)


async def update_scale(call: RequestContext) -> Response:
    """Replace the Scale: update the replicas of its parent."""
    options = write_options(call.request.query, "UpdateOptions")
    scale_call = _scale_context(call)
    sent = await call.compute(decode_object, scale_call, options)
    check_name(scale_call, sent)
    uid = sent["metadata"].get("uid") or ""

    async def transform(old: Object | None) -> Object:
        assert old is not None
        scale = deep_copy(sent)
        await _track(scale_call, scale, _current_scale(call, old), options)
        return _with_replicas(call, old, scale)

    return await _update_parent(call, options, transform, uid=uid)


async def patch_scale(call: RequestContext) -> Response:
    """Patch or apply the Scale: update the replicas of its parent."""
    media_type = patch_type(call)
    applies = media_type == APPLY_PATCH
    options = write_options(call.request.query, "PatchOptions", applies=applies)
    body: Body = (
        await call.compute(read_applied, call.request, call, options)
        if applies
        else await call.compute(read_patch, call.request)
    )
    scale_call = _scale_context(call)

    async def transform(old: Object | None) -> Object:
        assert old is not None
        current = _current_scale(call, old)
        if applies:
            scale = await server_side_apply(scale_call, current, body.value, options, "scale")
        else:
            patched = apply_patch(media_type, current, body.value, scale_call)
            scale = decode_patched(scale_call, patched, body, options)
            _require_replicas(call, old, patched)
            await _track(scale_call, scale, current, options)
        check_name(scale_call, scale)
        return _with_replicas(call, old, scale)

    return await _update_parent(call, options, transform)


@cache
def _scale_resource() -> Resource:
    """A resource for Scale, so that it is decoded, patched, applied and tracked like any other kind. It is never
    stored."""
    from herder.engine.apiserver.builtin import BuiltinType

    versions = {SCALE.version: Version(SCALE.version, BuiltinType(SCALE))}
    return Resource(SCALE.group, "scales", "scale", SCALE.kind, True, versions, SCALE.version)


def _scale_context(call: RequestContext) -> RequestContext:
    resource = _scale_resource()
    return replace(call, resource=resource, version=resource.versions[SCALE.version])


def _current_scale(call: RequestContext, parent: Object) -> Object:
    """Return the current Scale, with the managedFields entries that own its replicas."""
    scale = scale_of(call, parent)
    entries = parent["metadata"].get("managedFields")
    set_managed_fields(scale, entries_for_scale(entries, _replicas_paths(call.resource)) if entries else [])
    return scale


async def _track(call: RequestContext, scale: Object, current: Object, options: WriteOptions) -> None:
    """Set managedFields of the Scale.

    Zero replicas are omitted from a Scale and therefore owned by no manager. If no manager owned them before, none
    becomes the owner.
    """
    replicas = _get_path(scale, ".spec.replicas")
    if not replicas and _get_path(current, ".spec.replicas"):
        set_managed_fields(scale, [])
        return
    if not replicas:
        scale["spec"] = {}
    await update_managed_fields(call, scale, current, options, "scale")


def _require_replicas(call: RequestContext, parent: Object, scale: Object) -> None:
    paths = call.version.scale
    assert paths is not None
    if (
        call.resource.custom
        and _get_path(parent, paths.spec_replicas) is None
        and _get_path(scale, ".spec.replicas") is None
    ):
        raise BadRequest(f'the spec replicas field "{paths.spec_replicas}" cannot be empty')


def _replicas_paths(resource: Resource) -> ReplicasPaths:
    return {
        resource.api_version(version.name): tuple(f"f:{step}" for step in _steps(version.scale.spec_replicas))
        if version.scale
        else None
        for version in resource.versions.values()
    }


async def _update_parent(call: RequestContext, options: WriteOptions, transform: Any, *, uid: str = "") -> Response:
    change = ObjectChange(
        transform=transform,
        options=options,
        subresource="scale",
        updates_managers=False,
        precondition_uid=uid,
        kind=SCALE,
        admission_view=lambda obj: scale_of(call, obj),
    )
    found = (await change_object(call, change)).found
    parent = (await to_version(call, [decode(found)]))[0] if isinstance(found, Record) else found
    return _render(call, parent)


def _render(call: RequestContext, parent: Object) -> Response:
    scale, rendering = scale_of(call, parent), call.rendering
    if rendering.transform == "Table":
        include = rendering.include_object or "Metadata"
        return render_response(tables.render_scale(scale, now=call.deps.clock(), include_object=include), rendering)
    return render_response(scale, rendering)


def scale_of(call: RequestContext, parent: Object) -> Object:
    """Return the Scale of a parent object."""
    paths = call.version.scale
    assert paths is not None
    metadata = parent["metadata"]
    shown = {
        name: metadata[name]
        for name in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        if metadata.get(name)
    }
    status: Object = {"replicas": _get_path(parent, paths.status_replicas) or 0}
    selector = _selector(call, parent)
    if selector:
        status["selector"] = selector
    replicas = _get_path(parent, paths.spec_replicas)
    spec: Object = {"replicas": replicas} if replicas else {}
    return {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": shown, "spec": spec, "status": status}


def _selector(call: RequestContext, parent: Object) -> str:
    """Return the selector of the Scale: custom resources store a string, built-in workloads a selector object."""
    paths = call.version.scale
    assert paths is not None
    if call.resource.custom:
        found = _get_path(parent, paths.label_selector) if paths.label_selector else ""
        return found if isinstance(found, str) else ""
    selector = (parent.get("spec") or {}).get("selector") or {}
    if "matchLabels" not in selector and "matchExpressions" not in selector:
        return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
    parsed = label_selector_from_object(selector)
    if parsed is None:
        return ""
    return ",".join(
        f"{item.key}={item.values[0]}" if item.operator == "in" and len(item.values) == 1 else str(item)
        for item in parsed.requirements
    )


def _with_replicas(call: RequestContext, parent: Object, scale: Object) -> Object:
    """Return the parent with the replicas of the Scale. Their owners are those of the Scale's replicas."""
    paths = call.version.scale
    assert paths is not None
    metadata = scale["metadata"]
    replicas = (scale.get("spec") or {}).get("replicas") or 0
    if replicas < 0 and not call.resource.custom:
        problem = invalid_value("spec.replicas", replicas, "must be greater than or equal to 0")
        raise invalid(SCALE.group_kind, call.info.name, [problem])
    parent = deep_copy(parent)
    if metadata.get("resourceVersion"):
        parent["metadata"]["resourceVersion"] = metadata["resourceVersion"]
    _set_path(parent, paths.spec_replicas, replicas)
    entries, owners = parent["metadata"].get("managedFields") or [], metadata.get("managedFields") or []
    set_managed_fields(parent, entries_for_parent(entries, owners, call.api_version, _replicas_paths(call.resource)))
    return parent


def _steps(path: str) -> list[str]:
    return path.strip(".").split(".")


def _get_path(obj: Object, path: str) -> Any:
    value: Any = obj
    for step in _steps(path):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _set_path(obj: Object, path: str, value: Any) -> None:
    *parents, last = _steps(path)
    for step in parents:
        inner = obj.get(step)
        if not isinstance(inner, dict):
            inner = obj[step] = {}
        obj = inner
    obj[last] = value
