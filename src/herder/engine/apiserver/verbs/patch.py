"""The patch verb: JSON patch, merge patch, strategic merge patch and server-side apply."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from herder.engine.apiserver.context import RequestContext
from herder.engine.apiserver.registry.managed_fields import server_side_apply
from herder.engine.apiserver.registry.metadata import ensure_namespace, metadata_of
from herder.engine.apiserver.registry.storage_codec import encode
from herder.engine.apiserver.request.body import Body, read_json, read_yaml
from herder.engine.apiserver.request.decode import check_kind
from herder.engine.apiserver.request.options import WriteOptions, write_options
from herder.engine.apiserver.response.render import object_response
from herder.engine.apiserver.verbs.write_path import ObjectChange, change_object, check_name, default
from herder.engine.meta.errors import BadRequest, UnsupportedMediaType, invalid, invalid_value, not_found
from herder.engine.meta.kinds import GroupKind, Object
from herder.engine.patch import apply_json_patch, apply_merge_patch, apply_strategic_patch
from herder.engine.schema.objectmeta import coerce
from herder.engine.wire import Request, Response

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


async def patch(call: RequestContext) -> Response:
    """Patch the object; server-side apply creates it if it does not exist."""
    media_type = patch_type(call)
    applies = media_type == APPLY_PATCH
    options = write_options(call.request.query, "PatchOptions", applies=applies)
    transform = await _prepare_apply(call, options) if applies else await _prepare_patch(call, media_type, options)
    change = ObjectChange(
        transform=transform,
        options=options,
        subresource=call.info.subresource,
        creates_missing=applies and not call.info.subresource,
        updates_managers=not applies,
    )
    changed = await change_object(call, change)
    return await object_response(call, changed.found, 201 if changed.created else 200)


def patch_type(call: RequestContext) -> str:
    """Return the patch type from Content-Type. Custom resources do not support strategic merge patch."""
    accepted = [JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH]
    if call.resource.custom:
        accepted.remove(STRATEGIC_PATCH)
    media_type = call.request.headers.get("content-type", "").partition(";")[0].strip()
    if media_type not in accepted:
        if not call.resource.custom:
            raise UnsupportedMediaType("415: Unsupported Media Type", details={})
        message = "the body of the request was in an unknown format - accepted media types include: "
        raise UnsupportedMediaType(message + ", ".join(accepted))
    return media_type


async def _prepare_apply(call: RequestContext, options: WriteOptions) -> Callable[[Object | None], Awaitable[Object]]:
    body = await call.compute(read_applied, call.request, call, options)

    async def transform(live: Object | None) -> Object:
        obj = await server_side_apply(call, live, body.value, options, call.info.subresource)
        if call.resource.custom:  # nulls are kept as applied; schema validation decides about them
            coerce(metadata_of(obj), [])
        else:
            obj, _ = await call.compute(call.version.model.decode, obj)
        return await _complete(call, obj)

    return transform


def read_applied(request: Request, call: RequestContext, options: WriteOptions) -> Body:
    """Decode the applied configuration, and report duplicate keys."""
    try:
        body = read_yaml(request.body)
    except ValueError as error:
        message = str(error).removeprefix("error converting YAML to JSON: ")
        raise BadRequest(f"error decoding YAML: error converting YAML to JSON: {message}") from None
    if body.duplicates and options.field_validation != "Ignore":
        message = "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  "
        if options.field_validation == "Strict":
            raise BadRequest(message + "\n  ".join(body.duplicates))
        for duplicate in body.duplicates:
            call.warn(duplicate)
    return body


async def _prepare_patch(
    call: RequestContext, media_type: str, options: WriteOptions
) -> Callable[[Object | None], Awaitable[Object]]:
    body = await call.compute(read_patch, call.request)

    async def transform(old: Object | None) -> Object:
        if old is None:
            raise not_found(call.group_resource, call.info.name)
        obj = await call.compute(apply_patch, media_type, old, body.value, call)
        return await _complete(call, await call.compute(decode_patched, call, obj, body, options))

    return transform


def read_patch(request: Request) -> Body:
    """Decode a JSON, merge or strategic merge patch."""
    try:
        return read_json(request.body)
    except ValueError as error:
        message = (
            "" if request.headers.get("content-type", "").startswith(STRATEGIC_PATCH) else "error decoding patch: "
        )
        raise BadRequest(f"{message}{error}") from None


def apply_patch(media_type: str, old: Object, given: Any, call: RequestContext) -> Any:
    """Return the patched document."""
    if media_type == JSON_PATCH:
        return apply_json_patch(old, given)
    if media_type == MERGE_PATCH:
        return apply_merge_patch(old, given)
    patched = apply_strategic_patch(old, given, call.version.model.merge_type.patch_schema())
    if isinstance(patched, dict):  # apiVersion and kind cannot be patched: other values are ignored
        status = {name: old[name] for name in ("kind", "apiVersion") if name in old}
        patched |= {name: value for name, value in status.items() if isinstance(patched.get(name), str | None)}
    return patched


def decode_patched(call: RequestContext, obj: Any, body: Body, options: WriteOptions) -> Object:
    """Decode the patched document as an object of the resource's type. Errors are reported on the field `patch`."""
    if not isinstance(obj, dict):
        raise _patch_error(obj, "the patched document is not an object")
    if not call.resource.custom and obj.get("apiVersion") in (None, ""):
        message = f"the name of the object ({call.info.name} based on URL) was undeterminable: name must be provided"
        raise BadRequest(message)
    try:
        check_kind(call, obj, call.kind)
        decoded, unknown = call.version.model.decode(obj)
    except BadRequest as error:
        kind = call.kind
        message = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: '
        raise _patch_error(obj, error.message.removeprefix(message)) from None
    prefix = "json patch " if isinstance(body.value, list) else ""
    strict_errors = [*(prefix + duplicate for duplicate in body.duplicates), *unknown]
    if strict_errors and options.field_validation == "Strict":
        raise _patch_error(obj, f"strict decoding error: {', '.join(strict_errors)}")
    if options.field_validation == "Warn":
        for strict_error in strict_errors:
            call.warn(strict_error)
    return decoded


def _patch_error(obj: Any, why: str) -> Exception:
    return invalid(GroupKind("", ""), "", [invalid_value("patch", encode(obj).decode(), why)])


async def _complete(call: RequestContext, obj: Object) -> Object:
    metadata_of(obj)
    ensure_namespace(call, obj)
    check_name(call, obj)
    await default(call, obj)
    return obj
