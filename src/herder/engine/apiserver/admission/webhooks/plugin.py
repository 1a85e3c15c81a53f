"""The MutatingAdmissionWebhook and ValidatingAdmissionWebhook plugins.

They fail closed: a webhook that cannot be called rejects the write, unless its failurePolicy is Ignore. Configurations
are compiled when they change, not on every write.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from msgspec import json

from herder.engine.apiserver.admission.chain import CONNECT, CREATE, DELETE, UPDATE, Attributes
from herder.engine.apiserver.admission.conditions import ConditionError, Conditions, EvaluationContext
from herder.engine.apiserver.admission.evaluation import Evaluation
from herder.engine.apiserver.admission.matching import Criteria, Invocation, in_version, is_exempt
from herder.engine.apiserver.admission.objects import Objects
from herder.engine.apiserver.admission.webhooks.client import CallFailed, WebhookClient
from herder.engine.apiserver.admission.webhooks.review import (
    REVIEW_VERSIONS,
    InvalidReview,
    ReviewResponse,
    denied,
    parse_review,
    request_of,
)
from herder.engine.apiserver.auth.access import Authorizer
from herder.engine.meta.errors import BadRequest, InternalError
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.meta.work import TooMuchWork
from herder.engine.patch import JsonPatchError, apply_json_patch
from herder.engine.store import Record

_GROUP = "admissionregistration.k8s.io"
MUTATING = GroupResource(_GROUP, "mutatingwebhookconfigurations")
VALIDATING = GroupResource(_GROUP, "validatingwebhookconfigurations")

_ALL_OPERATIONS = frozenset({CREATE, UPDATE, DELETE, CONNECT})
_DEFAULT_SECONDS = 10


class _Hook:
    """One webhook of a configuration, compiled."""

    def __init__(self, config: Object, hook: Object) -> None:
        self.name = str(hook.get("name") or "")
        self.identity = f"{config['metadata']['name']}/{self.name}"
        self.client_config: Object = hook.get("clientConfig") or {}
        self.criteria = Criteria(
            rules=hook.get("rules"),
            namespace_selector=hook.get("namespaceSelector"),
            object_selector=hook.get("objectSelector"),
            match_policy=hook.get("matchPolicy") or "Equivalent",
        )
        self.ignores_failures = hook.get("failurePolicy") == "Ignore"
        self.conditions = Conditions(hook.get("matchConditions") or ())
        self.seconds = float(hook.get("timeoutSeconds") or _DEFAULT_SECONDS)
        self.safe_in_dry_run = hook.get("sideEffects") in ("None", "NoneOnDryRun")
        self.reinvocable = hook.get("reinvocationPolicy") == "IfNeeded"
        accepted = hook.get("admissionReviewVersions") or ()
        self.review_version = next((version for version in accepted if version in REVIEW_VERSIONS), "")


class _Failed(Exception):
    """The webhook could not be called, or its response is invalid; failurePolicy decides what happens."""


class _Webhooks:
    """Common part of both plugins: compiled configurations and a single call."""

    operations = _ALL_OPERATIONS
    resources: frozenset[GroupResource] | None = None
    subresources: frozenset[str] | None = None
    mutating: bool
    source: GroupResource

    def __init__(
        self,
        objects: Objects,
        client: WebhookClient,
        *,
        authorizer: Authorizer,
        entropy: Callable[[int], bytes],
        evaluation: Evaluation,
    ) -> None:
        self._objects = objects
        self._evaluation = evaluation
        self._client = client
        self._authorizer = authorizer
        self._entropy = entropy
        self._compiled_from: tuple[Record, ...] = ()
        self._compiled: list[_Hook] = []

    def _hooks(self) -> list[_Hook]:
        records = self._objects.records(self.source)
        if records != self._compiled_from:  # records compare by identity, so equal tuples mean that nothing changed
            configs = [json.decode(record.value) for record in records]
            self._compiled = [_Hook(config, hook) for config in configs for hook in config.get("webhooks") or ()]
            self._compiled_from = records
        return self._compiled

    async def _match(self, hook: _Hook, attributes: Attributes) -> Invocation | None:
        invocation = hook.criteria.invocation(attributes, self._objects)
        if invocation is None or not hook.conditions:
            return invocation
        context = await EvaluationContext.of(attributes, invocation, self._objects, self._authorizer)
        try:
            are_true = partial(hook.conditions.all_true, context.bindings())
            return invocation if await self._evaluation.run(attributes, are_true) else None
        except (ConditionError, TooMuchWork) as error:
            if hook.ignores_failures:
                return None
            raise InternalError(f"Internal error occurred: {error}") from None

    async def _call_webhook(
        self, hook: _Hook, attributes: Attributes, invocation: Invocation
    ) -> tuple[ReviewResponse, Object | None]:
        """Call the webhook. Return its response and the object as sent. Raises _Failed, or StatusError if it denies."""
        if attributes.dry_run and not hook.safe_in_dry_run:
            raise BadRequest(f'admission webhook "{hook.name}" does not support dry run')
        if not hook.review_version:
            raise _Failed(
                "could not create admission objects: webhook does not accept known AdmissionReview versions "
                "(v1, v1beta1)"
            )
        uid = str(uuid.UUID(bytes=self._entropy(16), version=4))
        obj = await in_version(attributes, attributes.obj, invocation.version)
        old = await in_version(attributes, attributes.old, invocation.version)
        review = {
            "kind": "AdmissionReview",
            "apiVersion": f"admission.k8s.io/{hook.review_version}",
            "request": request_of(attributes, invocation, obj=obj, old=old, uid=uid),
        }
        try:
            body = await self._client.call(hook.client_config, json.encode(review), seconds=hook.seconds)
        except CallFailed as error:
            raise _Failed(f"failed to call webhook: {error}") from None
        try:
            response = parse_review(body, uid=uid, version=hook.review_version, mutating=self.mutating)
        except InvalidReview as error:
            raise _Failed(f"received invalid webhook response: {error}") from None
        attributes.warnings.extend(response.warnings)
        if not response.allowed:
            raise denied(hook.name, response.status)
        return response, obj


def _call_error(hook: _Hook, failure: _Failed) -> InternalError:
    message = f'failed calling webhook "{hook.name}": {failure}'
    return InternalError(f"Internal error occurred: {message}", details={"causes": [{"message": message}]})


@dataclass(slots=True)
class _Reinvocation:
    """State of reinvocation: which webhooks have been called, and which are called again."""

    output: bytes = b""
    called: set[str] = field(default_factory=set)
    pending: set[str] = field(default_factory=set)

    def reinvoke_earlier(self) -> None:
        self.pending |= self.called
        self.called.clear()


class MutatingWebhooks(_Webhooks):
    """Calls webhooks one after the other, by configuration name. Each one sees the changes of those before."""

    name = "MutatingAdmissionWebhook"
    mutating = True
    source = MUTATING

    async def admit(self, attributes: Attributes) -> None:
        hooks = self._hooks()
        if not hooks or is_exempt(attributes):
            return
        reinvocation: _Reinvocation = attributes.plugin_state.setdefault(self.name, _Reinvocation())
        if attributes.reinvoking and reinvocation.output != json.encode(attributes.obj):
            reinvocation.reinvoke_earlier()
        for hook in hooks:
            invocation = await self._match(hook, attributes)
            if invocation is None or (attributes.reinvoking and hook.identity not in reinvocation.pending):
                continue
            if await self._mutate(hook, attributes, invocation):
                reinvocation.reinvoke_earlier()
                attributes.reinvoke = True
            if hook.reinvocable:
                reinvocation.called.add(hook.identity)
        reinvocation.output = json.encode(attributes.obj)

    async def _mutate(self, hook: _Hook, attributes: Attributes, invocation: Invocation) -> bool:
        """Call the webhook and apply its patch. Return whether the object has changed."""
        try:
            response, sent = await self._call_webhook(hook, attributes, invocation)
        except _Failed as failure:
            if hook.ignores_failures:
                return False
            raise _call_error(hook, failure) from None
        if not response.patch:
            return False
        if sent is None:
            raise InternalError(
                f'Internal error occurred: admission webhook "{hook.name}" attempted to modify the object, '
                "which is not supported for this operation"
            )
        try:
            patched = apply_json_patch(sent, response.patch)
        except JsonPatchError as error:
            raise InternalError(f"Internal error occurred: {error}") from None
        if not isinstance(patched, dict):
            raise InternalError(f'Internal error occurred: admission webhook "{hook.name}" removed the object')
        before = attributes.obj
        returned = await in_version(attributes, patched, attributes.version)
        attributes.obj = attributes.normalized(returned or {})
        return attributes.obj != before


class ValidatingWebhooks(_Webhooks):
    """Calls all webhooks concurrently. One denial rejects the write."""

    name = "ValidatingAdmissionWebhook"
    mutating = False
    source = VALIDATING

    async def validate(self, attributes: Attributes) -> None:
        hooks = self._hooks()
        if not hooks or is_exempt(attributes):
            return
        matched = [(hook, await self._match(hook, attributes)) for hook in hooks]
        calls = [
            self._validate_with(hook, attributes, invocation) for hook, invocation in matched if invocation is not None
        ]
        if not calls:
            return
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _validate_with(self, hook: _Hook, attributes: Attributes, invocation: Invocation) -> None:
        try:
            await self._call_webhook(hook, attributes, invocation)
        except _Failed as failure:
            if not hook.ignores_failures:
                raise _call_error(hook, failure) from None
