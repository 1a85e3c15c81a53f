"""Decode a body to an object of the resource's type: check its kind, and report unknown and duplicate fields."""

from __future__ import annotations

import json

from herder.engine.apiserver.context import RequestContext
from herder.engine.apiserver.registry.resources import TypeModel
from herder.engine.apiserver.request.body import excerpt, expect_object, read_body
from herder.engine.apiserver.request.negotiation import JSON, body_type
from herder.engine.apiserver.request.options import WriteOptions
from herder.engine.meta.errors import BadRequest, Invalid, invalid, invalid_value
from herder.engine.meta.kinds import GroupKind, GroupVersionKind, Object

_MAX_STRICT_ERRORS = 100
"""Maximum number of errors that kube-apiserver reports."""


def decode_object(call: RequestContext, options: WriteOptions) -> Object:
    """Decode the request's object. Unknown fields are dropped; defaults are not applied yet."""
    body = read_body(call.request, call.resource.kind, call.kind)
    obj = expect_object(body.value, call.request, call.resource.kind)
    wrong_kind: Invalid | None = None
    try:
        check_kind(call, obj, call.kind)
    except Invalid as error:  # reported only if the object decodes
        wrong_kind = error
    obj, unknown = call.version.model.decode(obj)
    strict_errors = [*body.duplicates, *unknown]
    if body.duplicates and unknown and not call.resource.custom and body_type(call.request) == JSON:
        strict_errors = _sorted_by_position(call.request.body, strict_errors)
    apply_field_validation(call, strict_errors, options, call.kind)
    if wrong_kind is not None:
        raise wrong_kind
    return obj


def decode_as(call: RequestContext, options: WriteOptions, kind: GroupVersionKind, model: TypeModel | None) -> Object:
    """Decode a body of another kind than the resource's own, as subresources receive it."""
    body = read_body(call.request, kind.kind, kind)
    obj = expect_object(body.value, call.request, kind.kind)
    obj.setdefault("apiVersion", kind.api_version)
    obj.setdefault("kind", kind.kind)
    unknown: list[str] = []
    if model is not None:
        obj, unknown = model.decode(obj)
    apply_field_validation(call, [*body.duplicates, *unknown], options, kind)
    return obj


def _sorted_by_position(body: bytes, strict_errors: list[str]) -> list[str]:
    """Sort errors like kube-apiserver, which decodes built-in kinds in one pass and all others in two."""
    positions: dict[str, int] = {}

    def walk(value: object, path: str) -> None:
        if isinstance(value, tuple):
            seen: set[str] = set()
            for name, inner in value:
                at = f"{path}.{name}" if path else name
                what = "duplicate" if name in seen else "unknown"
                positions.setdefault(f'{what} field "{at}"', len(positions))
                seen.add(name)
                walk(inner, at)
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                walk(inner, f"{path}[{index}]")

    try:
        walk(json.loads(body.decode("utf-8", "replace"), object_pairs_hook=tuple), "")
    except (ValueError, RecursionError):
        return strict_errors  # the lenient decoder has accepted this body already
    return sorted(strict_errors, key=lambda strict_error: positions.get(strict_error, len(positions)))


def apply_field_validation(
    call: RequestContext, strict_errors: list[str], options: WriteOptions, kind: GroupVersionKind
) -> None:
    """Apply fieldValidation: ignore strict-decoding errors, send them as warnings, or reject the request."""
    if not strict_errors or options.field_validation == "Ignore":
        return
    del strict_errors[_MAX_STRICT_ERRORS:]
    if options.field_validation == "Strict":
        listed = ", ".join(strict_errors)
        message = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: '
        raise BadRequest(f"{message}strict decoding error: {listed}")
    for strict_error in strict_errors:
        call.warn(strict_error)


def check_kind(call: RequestContext, obj: Object, expected: GroupVersionKind) -> None:
    """Check that the object's kind is that of the path. Missing apiVersion and kind are filled in."""
    api_version, kind = obj.get("apiVersion"), obj.get("kind")
    for name, value in (("apiVersion", api_version), ("kind", kind)):
        if value is not None and not isinstance(value, str):
            raise BadRequest(
                f"the object provided is unrecognized (must be of type {expected.kind}): couldn't get version/kind; "
                f"json parse error: json: cannot unmarshal {_json_kind(value)} into Go struct field .{name} "
                "of type string"
            )
    if call.resource.custom:
        _check_custom_kind(call, obj, expected)
    if not api_version:
        obj["apiVersion"] = api_version = expected.api_version
    if not kind:
        obj["kind"] = kind = expected.kind
    if api_version == expected.api_version and kind == expected.kind:
        return
    raise BadRequest(_mismatch(call, api_version, kind, expected))


def _check_custom_kind(call: RequestContext, obj: Object, expected: GroupVersionKind) -> None:
    """Custom objects must contain apiVersion and kind: without them kube-apiserver cannot decode them."""
    for field, name in (("Kind", "kind"), ("apiVersion", "apiVersion")):
        if not obj.get(name):
            sent = call.request.body.decode("utf-8", "replace")
            raise BadRequest(
                f"the object provided is unrecognized (must be of type {expected.kind}): Object '{field}' is missing "
                f"in '{sent}' ({excerpt(call.request.body)})"
            )
    kind = obj["kind"]
    if obj["apiVersion"] == expected.api_version and kind != expected.kind:
        metadata = obj.get("metadata")
        object_name = metadata.get("name") if isinstance(metadata, dict) else None
        problem = invalid_value("kind", kind, f"must be {expected.kind}")
        raise invalid(GroupKind(expected.group, kind), object_name if isinstance(object_name, str) else "", [problem])


def _mismatch(call: RequestContext, api_version: str, kind: str, expected: GroupVersionKind) -> str:
    group, _, version = api_version.rpartition("/")
    other_version = (
        f"the API version in the data ({api_version}) does not match the expected API version ({expected.api_version})"
    )
    if call.resource.custom:
        return other_version
    message = f'{kind} in version "{version}" cannot be handled as a {expected.kind}: '
    known = call.deps.registry.by_kind(GroupKind(group, kind))
    if known is None or version not in known.versions:
        return f'{message}no kind "{kind}" is registered for version "{api_version}" in scheme "legacyscheme"'
    if (group, kind) == (expected.group, expected.kind):
        return other_version
    hub = expected.group.partition(".")[0] or "core"
    return f"{message}converting ({version}.{kind}) to ({hub}.{expected.kind}): unknown conversion"


def _json_kind(value: object) -> str:
    return {bool: "bool", int: "number", float: "number", list: "array", dict: "object"}.get(type(value), "string")
