"""AdmissionReview: endpoints and their answers, without I/O."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from herder.api.capi.admission import RULES, Admission, needs_admission
from herder.api.rke.admission import RULES as CLUSTER_RULES
from herder.engine.meta.errors import BadRequest, FieldError, StatusError, invalid
from herder.engine.meta.kinds import GroupVersionKind, Kind, Object

_REVIEW = GroupVersionKind("admission.k8s.io", "v1", "AdmissionReview")
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


MUTATE, VALIDATE = "mutate", "validate"
_NAME_PREFIXES = {MUTATE: "default", VALIDATE: "validation"}


def hook_path(kind: Kind, verb: str) -> str:
    return f"/{verb}-{kind.group.replace('.', '-')}-{kind.version}-{kind.kind.lower()}"


def hook_name(kind: Kind, verb: str) -> str:
    """Webhook name, which kubectl shows when a write is refused."""
    return f"{_NAME_PREFIXES[verb]}.{kind.kind.lower()}.{kind.group}"


class Endpoint(NamedTuple):
    """One webhook endpoint."""

    kind: Kind
    rules: Admission
    mutates: bool

    @property
    def path(self) -> str:
        return hook_path(self.kind, MUTATE if self.mutates else VALIDATE)

    @property
    def name(self) -> str:
        return hook_name(self.kind, MUTATE if self.mutates else VALIDATE)


def _endpoints(all_rules: Mapping[Kind, Admission]) -> Iterator[Endpoint]:
    for kind, rules in all_rules.items():
        if rules.default is not None:
            yield Endpoint(kind, rules, mutates=True)
        yield Endpoint(kind, rules, mutates=False)


CLUSTER_API = tuple(_endpoints(RULES))
CLUSTERS = tuple(_endpoints(CLUSTER_RULES))
ENDPOINTS: Mapping[str, Endpoint] = {endpoint.path: endpoint for endpoint in (*CLUSTER_API, *CLUSTERS)}


def answer(endpoint: Endpoint, body: bytes) -> bytes:
    """Answer an AdmissionReview. Raises BadRequest for a review that this endpoint does not accept."""
    request = request_of(endpoint.kind, endpoint.path, body)
    obj, old = request.get("object"), request.get("oldObject")
    if not isinstance(obj, dict) or not isinstance(old, dict | None):
        raise BadRequest("request.object: an object is expected, and in request.oldObject an object or null")
    if not needs_admission(obj, old):
        return answered(request, {})
    return answered(request, _defaults(endpoint, obj, old) if endpoint.mutates else _verdict(endpoint, obj, old))


def answered(request: Object, verdict: Object) -> bytes:
    """AdmissionReview response: allowed unless the verdict says otherwise."""
    response = {"uid": request.get("uid") or "", "allowed": True, **verdict}
    return _encode({"apiVersion": _REVIEW.api_version, "kind": _REVIEW.kind, "response": response})


def refused(error: StatusError) -> Object:
    return {"allowed": False, "status": error.to_status()}


def request_of(kind: Kind, path: str, body: bytes) -> Object:
    """The request of a review for this kind."""
    request = review_request(body)
    asked = request.get("kind")
    if asked != {"group": kind.group, "version": kind.version, "kind": kind.kind}:
        raise BadRequest(f"request.kind: {path} accepts {kind} only")
    return request


def review_request(body: bytes) -> Object:
    """The request in an AdmissionReview."""
    try:
        review = _decode(body)
    except (ValueError, RecursionError) as error:  # invalid JSON or UTF-8, or nested too deeply
        raise BadRequest(f"not an AdmissionReview: {error}") from None
    if not isinstance(review, dict) or GroupVersionKind.of(review) != _REVIEW:
        raise BadRequest(f"not an AdmissionReview: {_REVIEW} is expected")
    request = review.get("request")
    if not isinstance(request, dict):
        raise BadRequest("request: an object is expected")
    return request


def _defaults(endpoint: Endpoint, obj: Object, old: Object | None) -> Object:
    assert endpoint.rules.default is not None
    operations = [*_operations("", obj, endpoint.rules.default(obj, old))]
    if not operations:
        return {}
    return {"patchType": "JSONPatch", "patch": base64.b64encode(_encode(operations)).decode()}


def _operations(path: str, before: Object, after: Object) -> Iterator[Object]:
    """JSON patch between two objects; defaults never remove fields."""
    for name, value in after.items():
        at = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
        known: Any = before.get(name)
        if name not in before:
            yield {"op": "add", "path": at, "value": value}
        elif isinstance(known, dict) and isinstance(value, dict):
            if known is not value:
                yield from _operations(at, known, value)
        elif known != value:
            yield {"op": "replace", "path": at, "value": value}


def _verdict(endpoint: Endpoint, obj: Object, old: Object | None) -> Object:
    problems: list[FieldError] = endpoint.rules.validate(obj, old)
    if not problems:
        return {}
    metadata = obj.get("metadata") or {}
    name = metadata.get("name") or metadata.get("generateName") or ""
    return refused(invalid(endpoint.kind.group_kind, name, problems))
