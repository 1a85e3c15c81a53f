"""The scale subresource: a small object of its own whose one number is a field of its parent."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from herder.engine.apiserver import tables
from herder.engine.apiserver.bodies import Body
from herder.engine.apiserver.conversion import to_version
from herder.engine.apiserver.decoding import decode_object
from herder.engine.apiserver.options import WriteOptions, write_options
from herder.engine.apiserver.ownership import applied, put_entries, track
from herder.engine.apiserver.rendering import answer
from herder.engine.apiserver.resources import Resource, Version
from herder.engine.apiserver.scope import RequestContext
from herder.engine.apiserver.stored import copied, decode
from herder.engine.apiserver.verbs.patch import (
    APPLY_PATCH,
    apply_patch,
    decode_patched,
    patch_type,
    read_applied,
    read_patch,
)
from herder.engine.apiserver.verbs.update import Change, change_object, check_name
from herder.engine.client.wire import Response
from herder.engine.meta.errors import BadRequest, invalid, invalid_value, not_found
from herder.engine.meta.kinds import GroupVersionKind, Object
from herder.engine.meta.selectors import label_selector_from_object
from herder.engine.patch.scale import ReplicasPaths, entries_for_parent, entries_for_scale
from herder.engine.store import Record

SCALE = GroupVersionKind("autoscaling", "v1", "Scale")


async def get_scale(call: RequestContext) -> Response:
    record = call.parts.store.get(call.key)
    if record is None:
        raise not_found(call.group_resource, call.info.name)
    (parent,) = await to_version(call, [decode(record)])
    return _render(call, parent)


async def update_scale(call: RequestContext) -> Response:
    options = write_options(call.request.query, "UpdateOptions")
    scale_call = _of_scale(call)
    sent = await call.compute(decode_object, scale_call, options)
    check_name(scale_call, sent)
    uid = sent["metadata"].get("uid") or ""

    async def make(old: Object | None) -> Object:
        assert old is not None
        scale = copied(sent)
        await _track(scale_call, scale, _present(call, old), options)
        return _scaled(call, old, scale)

    return await _change(call, options, make, uid=uid)


async def patch_scale(call: RequestContext) -> Response:
    media_type = patch_type(call)
    applies = media_type == APPLY_PATCH
    options = write_options(call.request.query, "PatchOptions", applies=applies)
    body: Body = (
        await call.compute(read_applied, call.request, call, options)
        if applies
        else await call.compute(read_patch, call.request)
    )
    scale_call = _of_scale(call)

    async def make(old: Object | None) -> Object:
        assert old is not None
        present = _present(call, old)
        if applies:
            scale = await applied(scale_call, present, body.value, options, "scale")
        else:
            patched = apply_patch(media_type, present, body.value, scale_call)
            scale = decode_patched(scale_call, patched, body, options)
            _check_replicas_are_told(call, old, patched)
            await _track(scale_call, scale, present, options)
        check_name(scale_call, scale)
        return _scaled(call, old, scale)

    return await _change(call, options, make)


@cache
def _scale_resource() -> Resource:
    """Scales are read, patched, applied and owned as objects of any kind are; only they are stored nowhere."""
    from herder.engine.apiserver.builtin import BuiltinType

    versions = {SCALE.version: Version(SCALE.version, BuiltinType(SCALE))}
    return Resource(SCALE.group, "scales", "scale", SCALE.kind, True, versions, SCALE.version)


def _of_scale(call: RequestContext) -> RequestContext:
    resource = _scale_resource()
    return replace(call, resource=resource, version=resource.versions[SCALE.version])


def _present(call: RequestContext, parent: Object) -> Object:
    """The Scale as it is, with those who own its number."""
    scale = scale_of(call, parent)
    entries = parent["metadata"].get("managedFields")
    put_entries(scale, entries_for_scale(entries, _replicas_paths(call.resource)) if entries else [])
    return scale


async def _track(call: RequestContext, scale: Object, present: Object, options: WriteOptions) -> None:
    """Who owns the Scale's number now: nobody where that is none, which a Scale does not tell at all; and where nobody
    owned it before, nobody starts to."""
    replicas = _at(scale, ".spec.replicas")
    if not replicas and _at(present, ".spec.replicas"):
        put_entries(scale, [])
        return
    if not replicas:
        scale["spec"] = {}
    await track(call, scale, present, options, "scale")


def _check_replicas_are_told(call: RequestContext, parent: Object, scale: Object) -> None:
    paths = call.version.scale
    assert paths is not None
    if call.resource.custom and _at(parent, paths.spec_replicas) is None and _at(scale, ".spec.replicas") is None:
        raise BadRequest(f'the spec replicas field "{paths.spec_replicas}" cannot be empty')


def _replicas_paths(resource: Resource) -> ReplicasPaths:
    return {
        resource.api_version(version.name): tuple(f"f:{step}" for step in _steps(version.scale.spec_replicas))
        if version.scale
        else None
        for version in resource.versions.values()
    }


async def _change(call: RequestContext, options: WriteOptions, make: Any, *, uid: str = "") -> Response:
    change = Change(
        make=make,
        options=options,
        subresource="scale",
        tracks=False,
        precondition_uid=uid,
        kind=SCALE,
        admitted=lambda obj: scale_of(call, obj),
    )
    found = (await change_object(call, change)).found
    parent = (await to_version(call, [decode(found)]))[0] if isinstance(found, Record) else found
    return _render(call, parent)


def _render(call: RequestContext, parent: Object) -> Response:
    scale, rendering = scale_of(call, parent), call.rendering
    if rendering.transform == "Table":
        include = rendering.include_object or "Metadata"
        return answer(tables.render_scale(scale, now=call.parts.clock(), include_object=include), rendering)
    return answer(scale, rendering)


def scale_of(call: RequestContext, parent: Object) -> Object:
    paths = call.version.scale
    assert paths is not None
    metadata = parent["metadata"]
    shown = {
        name: metadata[name]
        for name in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        if metadata.get(name)
    }
    status: Object = {"replicas": _at(parent, paths.status_replicas) or 0}
    selector = _selector(call, parent)
    if selector:
        status["selector"] = selector
    replicas = _at(parent, paths.spec_replicas)
    spec: Object = {"replicas": replicas} if replicas else {}
    return {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": shown, "spec": spec, "status": status}


def _selector(call: RequestContext, parent: Object) -> str:
    """Custom resources name a string; built-in workloads have a selector object."""
    paths = call.version.scale
    assert paths is not None
    if call.resource.custom:
        found = _at(parent, paths.label_selector) if paths.label_selector else ""
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


def _scaled(call: RequestContext, parent: Object, scale: Object) -> Object:
    """The parent with the number that the Scale asks for, owned by whoever owns the Scale's."""
    paths = call.version.scale
    assert paths is not None
    metadata = scale["metadata"]
    replicas = (scale.get("spec") or {}).get("replicas") or 0
    if replicas < 0 and not call.resource.custom:
        problem = invalid_value("spec.replicas", replicas, "must be greater than or equal to 0")
        raise invalid(SCALE.group_kind, call.info.name, [problem])
    parent = copied(parent)
    if metadata.get("resourceVersion"):
        parent["metadata"]["resourceVersion"] = metadata["resourceVersion"]
    _put(parent, paths.spec_replicas, replicas)
    entries, owners = parent["metadata"].get("managedFields") or [], metadata.get("managedFields") or []
    put_entries(parent, entries_for_parent(entries, owners, call.api_version, _replicas_paths(call.resource)))
    return parent


def _steps(path: str) -> list[str]:
    return path.strip(".").split(".")


def _at(obj: Object, path: str) -> Any:
    value: Any = obj
    for step in _steps(path):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _put(obj: Object, path: str, value: Any) -> None:
    *parents, last = _steps(path)
    for step in parents:
        inner = obj.get(step)
        if not isinstance(inner, dict):
            inner = obj[step] = {}
        obj = inner
    obj[last] = value
