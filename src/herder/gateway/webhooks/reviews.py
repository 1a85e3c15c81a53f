"""AdmissionReview: which path asks what, and the answer to it. No I/O here: bodies come in, bodies go out."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from herder.api.capi.admission import RULES, Admission, is_concerned
from herder.engine.meta.errors import BadRequest, FieldError, invalid
from herder.engine.meta.kinds import GroupVersionKind, Kind, Object

_REVIEW = GroupVersionKind("admission.k8s.io", "v1", "AdmissionReview")
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class Endpoint(NamedTuple):
    kind: Kind
    rules: Admission
    mutates: bool

    @property
    def path(self) -> str:
        verb = "mutate" if self.mutates else "validate"
        return f"/{verb}-{self.kind.group.replace('.', '-')}-{self.kind.version}-{self.kind.kind.lower()}"

    @property
    def name(self) -> str:
        """What kubectl shows where a write is refused."""
        verb = "default" if self.mutates else "validation"
        return f"{verb}.{self.kind.kind.lower()}.{self.kind.group}"


def _endpoints() -> Iterator[Endpoint]:
    for kind, rules in RULES.items():
        if rules.default is not None:
            yield Endpoint(kind, rules, mutates=True)
        yield Endpoint(kind, rules, mutates=False)


ENDPOINTS: Mapping[str, Endpoint] = {endpoint.path: endpoint for endpoint in _endpoints()}


def answer(endpoint: Endpoint, body: bytes) -> bytes:
    """The whole answer to a whole question. BadRequest for what is no question that this endpoint can be asked."""
    request = _request(endpoint, body)
    obj, old = request.get("object"), request.get("oldObject")
    if not isinstance(obj, dict) or not isinstance(old, dict | None):
        raise BadRequest("request.object: an object is expected, and in request.oldObject an object or null")
    response: Object = {"uid": request.get("uid") or "", "allowed": True}
    if is_concerned(obj, old):
        response |= _defaults(endpoint, obj, old) if endpoint.mutates else _verdict(endpoint, obj, old)
    return _encode({"apiVersion": _REVIEW.api_version, "kind": _REVIEW.kind, "response": response})


def _request(endpoint: Endpoint, body: bytes) -> Object:
    try:
        review = _decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"not an AdmissionReview: {error}") from None
    if not isinstance(review, dict) or GroupVersionKind.of(review) != _REVIEW:
        raise BadRequest(f"not an AdmissionReview: {_REVIEW} is expected")
    request = review.get("request")
    if not isinstance(request, dict):
        raise BadRequest("request: an object is expected")
    asked = request.get("kind")
    wanted = {"group": endpoint.kind.group, "version": endpoint.kind.version, "kind": endpoint.kind.kind}
    if asked != wanted:
        raise BadRequest(f"request.kind: {endpoint.path} judges {endpoint.kind} only")
    return request


def _defaults(endpoint: Endpoint, obj: Object, old: Object | None) -> Object:
    assert endpoint.rules.default is not None
    operations = [*_operations("", obj, endpoint.rules.default(obj, old))]
    if not operations:
        return {}
    return {"patchType": "JSONPatch", "patch": base64.b64encode(_encode(operations)).decode()}


def _operations(path: str, before: Object, after: Object) -> Iterator[Object]:
    """A JSON patch from one object to another; defaults add and change, they never remove."""
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
    return {"allowed": False, "status": invalid(endpoint.kind.group_kind, name, problems).to_status()}
