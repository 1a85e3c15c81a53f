"""From a body to an object of the resource's type: kinds checked, unknown and repeated fields told."""

from __future__ import annotations

import json

from herder.engine.apiserver.bodies import expect_object, read_body, shown
from herder.engine.apiserver.negotiation import JSON, body_type
from herder.engine.apiserver.options import WriteOptions
from herder.engine.apiserver.resources import TypeModel
from herder.engine.apiserver.scope import RequestContext
from herder.engine.meta.errors import BadRequest, Invalid, invalid, invalid_value
from herder.engine.meta.kinds import GroupKind, GroupVersionKind, Object

_MOST_COMPLAINTS = 100
"""As many as the real server names."""


def decode_object(call: RequestContext, options: WriteOptions) -> Object:
    """The request's object, without unknown fields and not yet defaulted."""
    body = read_body(call.request, call.resource.kind, call.kind)
    obj = expect_object(body.value, call.request, call.resource.kind)
    wrong_kind: Invalid | None = None
    try:
        check_kind(call, obj, call.kind)
    except Invalid as error:  # told of an object that can be read
        wrong_kind = error
    obj, unknown = call.version.model.decode(obj)
    complaints = [*body.duplicates, *unknown]
    if body.duplicates and unknown and not call.resource.custom and body_type(call.request) == JSON:
        complaints = _in_order_of_document(call.request.body, complaints)
    tell_complaints(call, complaints, options, call.kind)
    if wrong_kind is not None:
        raise wrong_kind
    return obj


def decode_as(call: RequestContext, options: WriteOptions, kind: GroupVersionKind, model: TypeModel | None) -> Object:
    """A body of another kind than the resource's own: what a subresource is sent."""
    body = read_body(call.request, kind.kind, kind)
    obj = expect_object(body.value, call.request, kind.kind)
    obj.setdefault("apiVersion", kind.api_version)
    obj.setdefault("kind", kind.kind)
    unknown: list[str] = []
    if model is not None:
        obj, unknown = model.decode(obj)
    tell_complaints(call, [*body.duplicates, *unknown], options, kind)
    return obj


def _in_order_of_document(body: bytes, complaints: list[str]) -> list[str]:
    """As the real server meets them, which reads built-in kinds in one go and all others in two."""
    places: dict[str, int] = {}

    def walk(value: object, path: str) -> None:
        if isinstance(value, tuple):
            seen: set[str] = set()
            for name, inner in value:
                at = f"{path}.{name}" if path else name
                what = "duplicate" if name in seen else "unknown"
                places.setdefault(f'{what} field "{at}"', len(places))
                seen.add(name)
                walk(inner, at)
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                walk(inner, f"{path}[{index}]")

    try:
        walk(json.loads(body.decode("utf-8", "replace"), object_pairs_hook=tuple), "")
    except (ValueError, RecursionError):
        return complaints  # what is read here was read before, in a more forgiving way
    return sorted(complaints, key=lambda complaint: places.get(complaint, len(places)))


def tell_complaints(call: RequestContext, complaints: list[str], options: WriteOptions, kind: GroupVersionKind) -> None:
    if not complaints or options.field_validation == "Ignore":
        return
    del complaints[_MOST_COMPLAINTS:]
    if options.field_validation == "Strict":
        listed = ", ".join(complaints)
        message = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: '
        raise BadRequest(f"{message}strict decoding error: {listed}")
    for complaint in complaints:
        call.warn(complaint)


def check_kind(call: RequestContext, obj: Object, wanted: GroupVersionKind) -> None:
    """The object is what the path says; where it does not say what it is, it is told."""
    api_version, kind = obj.get("apiVersion"), obj.get("kind")
    for name, value in (("apiVersion", api_version), ("kind", kind)):
        if value is not None and not isinstance(value, str):
            raise BadRequest(
                f"the object provided is unrecognized (must be of type {wanted.kind}): couldn't get version/kind; json "
                f"parse error: json: cannot unmarshal {_json_kind(value)} into Go struct field .{name} of type string"
            )
    if call.resource.custom:
        _check_custom_kind(call, obj, wanted)
    if not api_version:
        obj["apiVersion"] = api_version = wanted.api_version
    if not kind:
        obj["kind"] = kind = wanted.kind
    if api_version == wanted.api_version and kind == wanted.kind:
        return
    raise BadRequest(_mismatch(call, api_version, kind, wanted))


def _check_custom_kind(call: RequestContext, obj: Object, wanted: GroupVersionKind) -> None:
    """Custom objects must say what they are: nothing but their kind tells how to read them."""
    for field, name in (("Kind", "kind"), ("apiVersion", "apiVersion")):
        if not obj.get(name):
            sent = call.request.body.decode("utf-8", "replace")
            raise BadRequest(
                f"the object provided is unrecognized (must be of type {wanted.kind}): Object '{field}' is missing in "
                f"'{sent}' ({shown(call.request.body)})"
            )
    kind = obj["kind"]
    if obj["apiVersion"] == wanted.api_version and kind != wanted.kind:
        metadata = obj.get("metadata")
        called = metadata.get("name") if isinstance(metadata, dict) else None
        problem = invalid_value("kind", kind, f"must be {wanted.kind}")
        raise invalid(GroupKind(wanted.group, kind), called if isinstance(called, str) else "", [problem])


def _mismatch(call: RequestContext, api_version: str, kind: str, wanted: GroupVersionKind) -> str:
    group, _, version = api_version.rpartition("/")
    other_version = (
        f"the API version in the data ({api_version}) does not match the expected API version ({wanted.api_version})"
    )
    if call.resource.custom:
        return other_version
    message = f'{kind} in version "{version}" cannot be handled as a {wanted.kind}: '
    known = call.parts.registry.by_kind(GroupKind(group, kind))
    if known is None or version not in known.versions:
        return f'{message}no kind "{kind}" is registered for version "{api_version}" in scheme "legacyscheme"'
    if (group, kind) == (wanted.group, wanted.kind):
        return other_version
    hub = wanted.group.partition(".")[0] or "core"
    return f"{message}converting ({version}.{kind}) to ({hub}.{wanted.kind}): unknown conversion"


def _json_kind(value: object) -> str:
    return {bool: "bool", int: "number", float: "number", list: "array", dict: "object"}.get(type(value), "string")
