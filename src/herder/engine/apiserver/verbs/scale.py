"""The scale subresource: a small object of its own whose one number is a field of its parent."""

from __future__ import annotations

from typing import Any

from herder.engine.apiserver import tables
from herder.engine.apiserver.bodies import Body
from herder.engine.apiserver.conversion import to_version
from herder.engine.apiserver.decoding import decode_as
from herder.engine.apiserver.options import WriteOptions, write_options
from herder.engine.apiserver.ownership import applied
from herder.engine.apiserver.rendering import answer
from herder.engine.apiserver.scope import Call
from herder.engine.apiserver.stored import copied, decode
from herder.engine.apiserver.verbs.patch import (
    APPLY_PATCH,
    STRATEGIC_PATCH,
    apply_patch,
    patch_type,
    read_applied,
    read_patch,
)
from herder.engine.apiserver.verbs.update import Change, change_object
from herder.engine.client.wire import Response
from herder.engine.meta.errors import BadRequest, invalid, invalid_value, not_found
from herder.engine.meta.kinds import GroupKind, GroupVersionKind, Object
from herder.engine.meta.selectors import label_selector_from_object
from herder.engine.patch import apply_merge_patch
from herder.engine.store import Record

SCALE = GroupVersionKind("autoscaling", "v1", "Scale")
_KIND = GroupKind("autoscaling", "Scale")


async def get_scale(call: Call) -> Response:
    record = call.parts.store.get(call.key)
    if record is None:
        raise not_found(call.group_resource, call.info.name)
    (parent,) = await to_version(call, [decode(record)])
    return _told(call, parent)


async def update_scale(call: Call) -> Response:
    options = write_options(call.request.query, "UpdateOptions")
    sent = decode_as(call, options, SCALE, None)

    async def make(old: Object | None) -> Object:
        assert old is not None
        return _scaled(call, old, sent)

    return await _change(call, options, make, uid=(sent.get("metadata") or {}).get("uid") or "")


async def patch_scale(call: Call) -> Response:
    media_type = patch_type(call)
    applies = media_type == APPLY_PATCH
    options = write_options(call.request.query, "PatchOptions", applies=applies)
    body: Body = read_applied(call.request, call, options) if applies else read_patch(call.request)

    async def make(old: Object | None) -> Object:
        assert old is not None
        if applies:
            return await applied(call, old, _as_parent(call, body.value), options, "scale")
        present = scale_of(call, old)
        if media_type == STRATEGIC_PATCH:  # a Scale has no lists: both merge alike
            sent = apply_merge_patch(present, body.value)
        else:
            sent = apply_patch(media_type, present, body.value, call)
        return _scaled(call, old, sent)

    return await _change(call, options, make, tracks=not applies)


def _as_parent(call: Call, scale: Any) -> Object:
    """What to apply to the parent, so that its one number is merged and owned like any other field."""
    metadata = {"name": call.info.name} | ({"namespace": call.info.namespace} if call.info.namespace else {})
    return _scaled(call, {"apiVersion": call.api_version, "kind": call.resource.kind, "metadata": metadata}, scale)


async def _change(call: Call, options: WriteOptions, make: Any, *, uid: str = "", tracks: bool = True) -> Response:
    change = Change(
        make=make,
        options=options,
        subresource="scale",
        tracks=tracks,
        precondition_uid=uid,
        kind=SCALE,
        admitted=lambda obj: scale_of(call, obj),
    )
    found = (await change_object(call, change)).found
    parent = (await to_version(call, [decode(found)]))[0] if isinstance(found, Record) else found
    return _told(call, parent)


def _told(call: Call, parent: Object) -> Response:
    scale, rendering = scale_of(call, parent), call.rendering
    if rendering.transform == "Table":
        include = rendering.include_object or "Metadata"
        return answer(tables.render_scale(scale, now=call.parts.clock(), include_object=include), rendering)
    return answer(scale, rendering)


def scale_of(call: Call, parent: Object) -> Object:
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


def _selector(call: Call, parent: Object) -> str:
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


def _scaled(call: Call, parent: Object, sent: Any) -> Object:
    """The parent with the number that the Scale asks for."""
    paths = call.version.scale
    assert paths is not None
    metadata = (sent.get("metadata") or {}) if isinstance(sent, dict) else {}
    spec = (sent.get("spec") or {}) if isinstance(sent, dict) else None
    if not isinstance(metadata, dict) or not isinstance(spec, dict):
        raise BadRequest('Scale in version "v1" cannot be handled as a Scale: json: cannot unmarshal object')
    name = metadata.get("name") or ""
    if name and name != call.info.name:
        raise BadRequest(f"the name of the object ({name}) does not match the name on the URL ({call.info.name})")
    replicas = spec.get("replicas", 0) or 0
    if isinstance(replicas, bool) or not isinstance(replicas, int):
        raise BadRequest(
            'Scale in version "v1" cannot be handled as a Scale: json: cannot unmarshal string into Go struct field '
            "ScaleSpec.spec.replicas of type int32"
        )
    if replicas < 0:
        problem = invalid_value("spec.replicas", replicas, "must be greater than or equal to 0")
        raise invalid(_KIND, call.info.name, [problem])
    parent = copied(parent)
    if metadata.get("resourceVersion"):
        parent["metadata"]["resourceVersion"] = metadata["resourceVersion"]
    _put(parent, paths.spec_replicas, replicas)
    return parent


def _at(obj: Object, path: str) -> Any:
    value: Any = obj
    for step in path.strip(".").split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _put(obj: Object, path: str, value: Any) -> None:
    *parents, last = path.strip(".").split(".")
    for step in parents:
        inner = obj.get(step)
        if not isinstance(inner, dict):
            inner = obj[step] = {}
        obj = inner
    obj[last] = value
