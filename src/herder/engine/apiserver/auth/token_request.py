"""TokenRequest: the `token` subresource of service accounts."""

from __future__ import annotations

from datetime import UTC, timedelta

from herder.engine.apiserver.auth.reviews import WRONG_NAMESPACE
from herder.engine.apiserver.auth.tokens import TokenIssuer
from herder.engine.apiserver.registry.resources import Subresource
from herder.engine.apiserver.request.handler_call import SubresourceRequest
from herder.engine.meta.errors import BadRequest, FieldError, conflict, invalid, invalid_value, not_found
from herder.engine.meta.kinds import GroupResource, GroupVersionKind, Object

KIND = GroupVersionKind("authentication.k8s.io", "v1", "TokenRequest")

_MIN_SECONDS = 600
_MAX_SECONDS = 1 << 32
_DEFAULT_SECONDS = 3600
# Pods' projected volumes request this duration. Such a token is valid longer, because many programs read it only once.
_POD_SECONDS = 3607
_POD_SECONDS_EXTENDED = 365 * 24 * 3600


class TokenRequests:
    """Issues service account tokens on request."""

    def __init__(self, issuer: TokenIssuer) -> None:
        self._issuer = issuer

    def subresource(self) -> Subresource:
        return Subresource("token", KIND, ("create",), self.create)

    async def create(self, call: SubresourceRequest) -> Object:
        wanted = call.body or {}
        metadata = wanted.get("metadata") or {}
        _check_name(metadata, call)
        account = call.parent_or_404()
        own = account["metadata"]
        if metadata.get("uid") and metadata["uid"] != own["uid"]:
            why = (
                f"the UID in the token request ({metadata['uid']}) does not match the UID of the service account "
                f"({own['uid']})"
            )
            raise conflict(GroupResource(KIND.group, KIND.kind), call.name, why)

        spec = wanted.get("spec") or {}
        seconds = spec.get("expirationSeconds")
        seconds = _DEFAULT_SECONDS if seconds is None else seconds
        problems = list(_duration_problems(seconds))
        if problems:
            raise invalid(KIND.group_kind, "", problems)
        audiences = spec.get("audiences") or list(self._issuer.audiences)
        reference = spec.get("boundObjectRef")
        bound = _bound_object(call, reference) if reference else {}

        lifetime, warn_after = seconds, 0
        if "pod" in bound and seconds == _POD_SECONDS and set(audiences) <= set(self._issuer.audiences):
            lifetime, warn_after = _POD_SECONDS_EXTENDED, seconds
        token = self._issuer.bound_token(
            account, now=call.now, seconds=lifetime, audiences=audiences, warn_after=warn_after, **bound
        )
        expires = call.now.astimezone(UTC) + timedelta(seconds=seconds)
        return {
            "kind": KIND.kind,
            "apiVersion": KIND.api_version,
            "metadata": metadata
            | {"name": own["name"], "namespace": own["namespace"], "uid": own["uid"]}
            | {"creationTimestamp": _timestamp(call.now.astimezone(UTC))},
            "spec": {"audiences": audiences, "expirationSeconds": seconds, "boundObjectRef": reference},
            "status": {"token": token, "expirationTimestamp": _timestamp(expires)},
        }


def _check_name(metadata: Object, call: SubresourceRequest) -> None:
    if metadata.get("namespace") not in (None, "", call.namespace):
        raise BadRequest(WRONG_NAMESPACE)
    if metadata.get("name") not in (None, "", call.name):
        why = "must match the service account name if specified"
        raise invalid(KIND.group_kind, call.name, [invalid_value("metadata.name", metadata["name"], why)])


def _duration_problems(seconds: int) -> list[FieldError]:
    at = "spec.expirationSeconds"
    if seconds < _MIN_SECONDS:
        return [invalid_value(at, seconds, "may not specify a duration less than 10 minutes")]
    if seconds > _MAX_SECONDS:
        return [invalid_value(at, seconds, "may not specify a duration larger than 2^32 seconds")]
    return []


def _bound_object(call: SubresourceRequest, reference: Object) -> dict[str, Object]:
    """Return the object that the token is bound to, by the name of its claim."""
    kind, name = GroupVersionKind.of(reference), str(reference.get("name") or "")
    claim = {"Pod": "pod", "Node": "node", "Secret": "secret"}.get(kind.kind)
    if claim is None or kind.group:
        raise BadRequest(f"cannot bind token to object of type {kind}")
    resource = GroupResource("", f"{claim}s")
    obj = call.lookup(resource, "" if claim == "node" else call.namespace, name)
    if obj is None:
        raise not_found(resource, name)
    bound = {claim: obj}
    if claim == "pod":
        bound |= _node_of(call, obj)
    if reference.get("uid") and reference["uid"] != obj["metadata"]["uid"]:
        why = (
            f"the UID in the bound object reference ({reference['uid']}) does not match the UID in record. "
            "The object might have been deleted and then recreated"
        )
        raise conflict(GroupResource("", kind.kind), name, why)
    return bound


def _node_of(call: SubresourceRequest, pod: Object) -> dict[str, Object]:
    spec = pod.get("spec") or {}
    if spec.get("serviceAccountName") != call.name:
        raise BadRequest(
            f'cannot bind token for serviceaccount "{call.name}" to pod running with different serviceaccount name.'
        )
    node_name = spec.get("nodeName")
    if not node_name:
        return {}
    return {"node": call.lookup(GroupResource("", "nodes"), "", node_name) or {"metadata": {"name": node_name}}}


def _timestamp(when: object) -> str:
    return f"{when:%Y-%m-%dT%H:%M:%SZ}"
