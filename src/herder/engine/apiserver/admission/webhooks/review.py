"""AdmissionReview: build the request for a webhook, and parse its response."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

import msgspec

from herder.engine.apiserver.admission.chain import Attributes
from herder.engine.apiserver.admission.matching import Invocation
from herder.engine.apiserver.admission.objects import NAMESPACES
from herder.engine.apiserver.auth.policy import quoted
from herder.engine.apiserver.auth.users import user_info
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import GroupVersionKind, GroupVersionResource, Object

REVIEW_VERSIONS = ("v1", "v1beta1")
_OPTIONS = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}


class InvalidReview(Exception):
    """The response is not a valid AdmissionReview."""


def request_of(
    attributes: Attributes, invocation: Invocation, *, obj: Object | None, old: Object | None, uid: str
) -> Object:
    """Return the `request` of an AdmissionReview; CEL expressions see it as `request`, too."""
    resource = attributes.resource
    requested = GroupVersionResource(resource.group, attributes.version, resource.plural)
    request: Object = {
        "uid": uid,
        "kind": _kind(invocation.kind),
        "resource": _resource(invocation.resource),
        "requestKind": _kind(attributes.group_version_kind),
        "requestResource": _resource(requested),
    }
    if attributes.subresource:
        request["subResource"] = request["requestSubResource"] = attributes.subresource
    if attributes.name:
        request["name"] = attributes.name
    # A Namespace is in itself.
    namespace = attributes.name if resource.group_resource == NAMESPACES else attributes.namespace
    if namespace:
        request["namespace"] = namespace
    kind = _OPTIONS.get(attributes.operation)
    given = {"kind": kind, "apiVersion": "meta.k8s.io/v1"} if kind else {}
    request |= {
        "operation": attributes.operation,
        "userInfo": user_info(attributes.user),
        "object": obj,
        "oldObject": old,
        "dryRun": attributes.dry_run,
        "options": given | (attributes.options or {}) or None,
    }
    return request


def _kind(kind: GroupVersionKind) -> Object:
    return {"group": kind.group, "version": kind.version, "kind": kind.kind}


def _resource(resource: GroupVersionResource) -> Object:
    return {"group": resource.group, "version": resource.version, "resource": resource.resource}


@dataclass(frozen=True, slots=True)
class ReviewResponse:
    """The parsed response of a webhook."""

    allowed: bool
    patch: list[Any] | None
    status: Object
    warnings: tuple[str, ...]


def parse_review(body: bytes, *, uid: str, version: str, mutating: bool) -> ReviewResponse:
    """Parse and validate a webhook's response. Raises InvalidReview."""
    try:
        review = msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or nested too deeply
        raise InvalidReview(f"couldn't get version/kind; json parse error: {error}") from None
    if not isinstance(review, dict):
        raise InvalidReview("couldn't get version/kind; json parse error: not an object")
    response = review.get("response")
    if version == "v1":
        kind = GroupVersionKind.of(review)
        if kind != ("admission.k8s.io", "v1", "AdmissionReview"):
            raise InvalidReview(f"expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {kind}")
    if not isinstance(response, dict):
        raise InvalidReview("webhook response was absent")
    if version == "v1" and response.get("uid") != uid:
        raise InvalidReview(f"expected response.uid={quoted(uid)}, got {quoted(str(response.get('uid') or ''))}")
    warnings = response.get("warnings")
    status = response.get("status")
    return ReviewResponse(
        allowed=response.get("allowed") is True,
        patch=_patch(response, version=version, mutating=mutating),
        status=status if isinstance(status, dict) else {},
        warnings=tuple(str(item) for item in warnings) if isinstance(warnings, list) else (),
    )


def _patch(response: Object, *, version: str, mutating: bool) -> list[Any] | None:
    encoded, kind = response.get("patch"), response.get("patchType")
    if not mutating:
        if version == "v1" and encoded:
            raise InvalidReview("validating webhook may not return response.patch")
        if version == "v1" and kind:
            raise InvalidReview("validating webhook may not return response.patchType")
        return None
    if version == "v1" and encoded and not kind:
        raise InvalidReview("webhook returned response.patch but not response.patchType")
    if version == "v1" and kind and not encoded:
        raise InvalidReview("webhook returned response.patchType but not response.patch")
    if not encoded:
        return None
    if version == "v1" and kind != "JSONPatch":
        raise InvalidReview(f"invalid value of response.patchType={quoted(str(kind))}, expected JSONPatch")
    try:
        operations = msgspec.json.decode(base64.b64decode(str(encoded), validate=True))
    except (msgspec.DecodeError, binascii.Error, ValueError, RecursionError):
        raise InvalidReview("received undecodable patch in webhook response") from None
    if not isinstance(operations, list):
        raise InvalidReview("received undecodable patch in webhook response")
    return operations


def denied(webhook: str, status: Object) -> StatusError:
    """Return the error of a webhook that denied the request, with its code, reason and message."""
    text = f'admission webhook "{webhook}" denied the request'
    message, reason = str(status.get("message") or ""), str(status.get("reason") or "")
    text = f"{text}: {message or reason}" if message or reason else f"{text} without explanation"
    code = status.get("code")
    details = status.get("details")
    return StatusError(
        text,
        code=code if isinstance(code, int) and 400 <= code < 600 else 400,
        reason=reason,
        details=details if isinstance(details, dict) else None,
    )
