"""SubjectAccessReview, TokenReview and related virtual resources: computed on create and never stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC
from typing import Any

from herder.engine.apiserver.auth.access import AccessAttributes
from herder.engine.apiserver.auth.authenticate import Authenticator
from herder.engine.apiserver.auth.jwt import TokenError
from herder.engine.apiserver.auth.rbac import RbacAuthorizer
from herder.engine.apiserver.auth.tokens import TokenVerifier
from herder.engine.apiserver.auth.users import user_info
from herder.engine.apiserver.request.handler_call import VirtualCall
from herder.engine.meta.errors import BadRequest, FieldError, Invalid, invalid, invalid_value, too_many
from herder.engine.meta.kinds import GroupKind, GroupResource, Object
from herder.engine.wire import User

AUTHORIZATION = "authorization.k8s.io"
AUTHENTICATION = "authentication.k8s.io"

WRONG_NAMESPACE = "the namespace of the provided object does not match the namespace sent on the request"

Virtual = Callable[[Object, VirtualCall], Awaitable[Object]]


class Reviews:
    """Handlers of the review resources."""

    def __init__(self, authorizer: RbacAuthorizer, authenticator: Authenticator, tokens: TokenVerifier) -> None:
        self._authorizer = authorizer
        self._authenticator = authenticator
        self._tokens = tokens

    def handlers(self) -> dict[GroupResource, Virtual]:
        """Return the handlers by resource."""
        return {
            GroupResource(AUTHORIZATION, "subjectaccessreviews"): self.subject_access,
            GroupResource(AUTHORIZATION, "selfsubjectaccessreviews"): self.self_subject_access,
            GroupResource(AUTHORIZATION, "localsubjectaccessreviews"): self.local_subject_access,
            GroupResource(AUTHORIZATION, "selfsubjectrulesreviews"): self.self_subject_rules,
            GroupResource(AUTHENTICATION, "tokenreviews"): self.token,
            GroupResource(AUTHENTICATION, "selfsubjectreviews"): self.self_subject,
        }

    # --- authorization.k8s.io -----------------------------------------------------------------------------------

    async def subject_access(self, obj: Object, call: VirtualCall) -> Object:
        spec = obj.get("spec") or {}
        _raise_if_invalid([*_spec_problems(spec), *_subject_problems(spec), *_metadata_problems(obj)])
        return self._review(obj, _subject(spec), spec)

    async def self_subject_access(self, obj: Object, call: VirtualCall) -> Object:
        spec = obj.get("spec") or {}
        _raise_if_invalid([*_spec_problems(spec), *_metadata_problems(obj)])
        return self._review(obj, call.user, spec)

    async def local_subject_access(self, obj: Object, call: VirtualCall) -> Object:
        metadata = obj.get("metadata") or {}
        if metadata.get("namespace") not in (None, "", call.namespace):
            raise BadRequest(WRONG_NAMESPACE)
        obj = obj | {"metadata": metadata | {"namespace": call.namespace}}
        spec = obj.get("spec") or {}
        problems = [*_spec_problems(spec), *_subject_problems(spec), *_metadata_problems(obj)]
        namespace = (spec.get("resourceAttributes") or {}).get("namespace") or ""
        if spec.get("resourceAttributes") is not None and namespace != call.namespace:
            at = "spec.resourceAttributes.namespace"
            problems.append(invalid_value(at, namespace, "must match metadata.namespace"))
        if spec.get("nonResourceAttributes") is not None:
            problems.append(_non_resource(spec, "disallowed on this kind of request"))
        _raise_if_invalid(problems)
        return self._review(obj, _subject(spec), spec)

    async def self_subject_rules(self, obj: Object, call: VirtualCall) -> Object:
        namespace = (obj.get("spec") or {}).get("namespace") or ""
        if not namespace:
            raise BadRequest("no namespace on request")
        grants = self._authorizer.policy.grants(call.user, namespace)
        status: Object = {
            "resourceRules": [_select_fields(rule, _RESOURCE_RULE) for rule in grants.rules if rule.get("resources")],
            "nonResourceRules": [
                _select_fields(rule, _PATH_RULE) for rule in grants.rules if rule.get("nonResourceURLs")
            ],
            "incomplete": False,
        }
        if grants.errors:
            status["evaluationError"] = grants.error_message()
        return obj | {"spec": {}, "status": status}

    def _review(self, obj: Object, user: User, spec: Object) -> Object:
        decision = self._authorizer.authorize(user, _attributes(spec))
        status: Object = {"allowed": decision.allowed}
        if decision.reason:
            status["reason"] = decision.reason
        return obj | {"status": status}

    # --- authentication.k8s.io ----------------------------------------------------------------------------------

    async def token(self, obj: Object, call: VirtualCall) -> Object:
        spec = obj.get("spec") or {}
        token = spec.get("token") or ""
        if not token:
            raise BadRequest("token is required for TokenReview in authentication")
        return obj | {"status": await self._token_status(token, spec.get("audiences") or ())}

    async def _token_status(self, token: str, wanted: Sequence[str]) -> Object:
        own = self._tokens.audiences
        try:
            found = self._tokens.verify(token, wanted or own)
            if found is None:
                user = await self._authenticator.token_user(token)
                shared = tuple(audience for audience in wanted or own if audience in own)
                found = (user, shared) if user and shared else None
        except TokenError as error:
            return {"user": {}, "error": f"[invalid bearer token, {error}]"}
        if found is None:
            return {"user": {}, "error": "invalid bearer token"}
        return {"authenticated": True, "user": user_info(found[0]), "audiences": list(found[1])}

    async def self_subject(self, obj: Object, call: VirtualCall) -> Object:
        created = call.now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        kept = {key: obj[key] for key in ("kind", "apiVersion") if key in obj}
        return kept | {"metadata": {"creationTimestamp": created}, "status": {"userInfo": user_info(call.user)}}


_RESOURCE_RULE = ("verbs", "apiGroups", "resources", "resourceNames")
_PATH_RULE = ("verbs", "nonResourceURLs")


def _select_fields(rule: Object, fields: Sequence[str]) -> Object:
    return {name: rule[name] for name in fields if rule.get(name)}


def _subject(spec: Object) -> User:
    extra = {key.lower(): tuple(values or ()) for key, values in (spec.get("extra") or {}).items()}
    return User(spec.get("user") or "", spec.get("uid") or "", tuple(spec.get("groups") or ()), extra)


def _attributes(spec: Object) -> AccessAttributes:
    resource = spec.get("resourceAttributes")
    if resource is None:
        path = spec.get("nonResourceAttributes") or {}
        return AccessAttributes(path.get("verb") or "", path=path.get("path") or "")
    names = ("verb", "group", "version", "resource", "subresource", "namespace", "name")
    return AccessAttributes(**{name: resource.get(name) or "" for name in names})


# --- validation -------------------------------------------------------------------------------------------------


_MAX_GROUPS = 1_000
"""Limit on groups: each one is a lookup that blocks other requests."""


def _spec_problems(spec: Object) -> list[FieldError]:
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    problems: list[FieldError] = []
    if resource is not None and path is not None:
        problems.append(_non_resource(spec, "cannot be specified in combination with resourceAttributes"))
    if resource is None and path is None:
        why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        problems.append(invalid_value("spec.resourceAttributes", None, why))
    for kind in ("fieldSelector", "labelSelector"):
        selector: Any = (resource or {}).get(kind)
        if selector is None:
            continue
        at, raw = f"spec.resourceAttributes.{kind}.rawSelector", selector.get("rawSelector") or ""
        if raw and selector.get("requirements"):
            problems.append(invalid_value(at, raw, "may not specified at the same time as requirements"))
        elif not raw and not selector.get("requirements"):
            at = f"spec.resourceAttributes.{kind}.requirements"
            problems.append(
                FieldError("FieldValueRequired", at, "Required value: when specifying " + _required_message(kind))
            )
    return problems


def _required_message(kind: str) -> str:
    return f"{kind}, requirements or rawSelector is required"


def _subject_problems(spec: Object) -> list[FieldError]:
    if len(spec.get("groups") or ()) > _MAX_GROUPS:
        return [too_many("spec.groups", len(spec["groups"]), _MAX_GROUPS)]
    if spec.get("user") or spec.get("groups"):
        return []
    return [invalid_value("spec.user", "", "at least one of user or group must be specified")]


def _non_resource(spec: Object, why: str) -> FieldError:
    path = spec["nonResourceAttributes"]
    return invalid_value(
        "spec.nonResourceAttributes", {"Path": path.get("path") or "", "Verb": path.get("verb") or ""}, why
    )


_SERVER_OWNED_FIELDS = frozenset({"managedFields", "namespace", "creationTimestamp", "uid"})


def _metadata_problems(obj: Object) -> list[FieldError]:
    metadata = obj.get("metadata") or {}
    if not any(value for key, value in metadata.items() if key not in _SERVER_OWNED_FIELDS):
        return []
    return [invalid_value("metadata", metadata, "must be empty")]


def _raise_if_invalid(problems: Sequence[FieldError]) -> None:
    if problems:
        error: Invalid = invalid(GroupKind(AUTHORIZATION, ""), "", problems)
        (error.details or {}).pop("kind", None)  # kube-apiserver reports no kind here
        raise error
