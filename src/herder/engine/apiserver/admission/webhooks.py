"""Mutating and validating webhooks: other programs that change or refuse writes.

Nothing is let through by accident: a webhook that cannot be asked refuses, unless its failurePolicy says Ignore. The
configurations are compiled when they change, not when they are used.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import json

from herder.engine.apiserver.admission.chain import CONNECT, CREATE, DELETE, UPDATE, Attributes
from herder.engine.apiserver.admission.conditions import ConditionError, Conditions, Context
from herder.engine.apiserver.admission.matching import Criteria, Invocation, in_version, is_exempt
from herder.engine.apiserver.admission.objects import Objects
from herder.engine.apiserver.admission.review import (
    REVIEW_VERSIONS,
    Answer,
    BadAnswer,
    denied,
    read_answer,
    request_of,
)
from herder.engine.apiserver.admission.webhook_client import CallFailed, WebhookClient
from herder.engine.apiserver.auth.access import Authorizer
from herder.engine.meta.errors import BadRequest, InternalError
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.patch import JsonPatchError, apply_json_patch
from herder.engine.store import Record

_GROUP = "admissionregistration.k8s.io"
MUTATING = GroupResource(_GROUP, "mutatingwebhookconfigurations")
VALIDATING = GroupResource(_GROUP, "validatingwebhookconfigurations")

_ALL_OPERATIONS = frozenset({CREATE, UPDATE, DELETE, CONNECT})
_DEFAULT_SECONDS = 10


class _Hook:
    """One webhook of one configuration, ready to be matched and called."""

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
        self.may_run_again = hook.get("reinvocationPolicy") == "IfNeeded"
        accepted = hook.get("admissionReviewVersions") or ()
        self.review_version = next((version for version in accepted if version in REVIEW_VERSIONS), "")


class _Failed(Exception):
    """The webhook could not be asked or understood: what failurePolicy is about."""


class _Webhooks:
    """What both kinds share: the compiled configurations, and one call."""

    operations = _ALL_OPERATIONS
    resources: frozenset[GroupResource] | None = None
    subresources: frozenset[str] | None = None
    mutating: bool
    source: GroupResource

    def __init__(
        self, objects: Objects, client: WebhookClient, *, authorizer: Authorizer, entropy: Callable[[int], bytes]
    ) -> None:
        self._objects = objects
        self._client = client
        self._authorizer = authorizer
        self._entropy = entropy
        self._compiled_from: tuple[Record, ...] = ()
        self._compiled: list[_Hook] = []

    def _hooks(self) -> list[_Hook]:
        records = self._objects.records(self.source)
        if records != self._compiled_from:  # records compare by identity: the same ones mean nothing changed
            configs = [json.decode(record.value) for record in records]
            self._compiled = [_Hook(config, hook) for config in configs for hook in config.get("webhooks") or ()]
            self._compiled_from = records
        return self._compiled

    async def _wanted(self, hook: _Hook, attributes: Attributes) -> Invocation | None:
        invocation = hook.criteria.invocation(attributes, self._objects)
        if invocation is None or not hook.conditions:
            return invocation
        context = await Context.of(attributes, invocation, self._objects, self._authorizer)
        try:
            return invocation if hook.conditions.hold(context.bindings()) else None
        except ConditionError as error:
            if hook.ignores_failures:
                return None
            raise InternalError(f"Internal error occurred: {error}") from None

    async def _ask(self, hook: _Hook, attributes: Attributes, invocation: Invocation) -> tuple[Answer, Object | None]:
        """The webhook's answer, and the object as it was shown. Raises _Failed, or StatusError for a refusal."""
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
            answer = read_answer(body, uid=uid, version=hook.review_version, mutating=self.mutating)
        except BadAnswer as error:
            raise _Failed(f"received invalid webhook response: {error}") from None
        attributes.warnings.extend(answer.warnings)
        if not answer.allowed:
            raise denied(hook.name, answer.status)
        return answer, obj


def _failed_closed(hook: _Hook, failure: _Failed) -> InternalError:
    message = f'failed calling webhook "{hook.name}": {failure}'
    return InternalError(f"Internal error occurred: {message}", details={"causes": [{"message": message}]})


@dataclass(slots=True)
class _Rounds:
    """What is remembered between the two rounds of mutation."""

    output: bytes = b""
    called: set[str] = field(default_factory=set)
    again: set[str] = field(default_factory=set)

    def call_earlier_ones_again(self) -> None:
        self.again |= self.called
        self.called.clear()


class MutatingWebhooks(_Webhooks):
    """Asked one after the other, in the order of their configurations' names; each sees what those before changed."""

    name = "MutatingAdmissionWebhook"
    mutating = True
    source = MUTATING

    async def admit(self, attributes: Attributes) -> None:
        hooks = self._hooks()
        if not hooks or is_exempt(attributes):
            return
        rounds: _Rounds = attributes.scratch.setdefault(self.name, _Rounds())
        if attributes.reinvoking and rounds.output != json.encode(attributes.obj):
            rounds.call_earlier_ones_again()
        for hook in hooks:
            invocation = await self._wanted(hook, attributes)
            if invocation is None or (attributes.reinvoking and hook.identity not in rounds.again):
                continue
            if await self._mutate(hook, attributes, invocation):
                rounds.call_earlier_ones_again()
                attributes.reinvoke = True
            if hook.may_run_again:
                rounds.called.add(hook.identity)
        rounds.output = json.encode(attributes.obj)

    async def _mutate(self, hook: _Hook, attributes: Attributes, invocation: Invocation) -> bool:
        """Ask, and apply what comes back; answers whether the object is another now."""
        try:
            answer, shown = await self._ask(hook, attributes, invocation)
        except _Failed as failure:
            if hook.ignores_failures:
                return False
            raise _failed_closed(hook, failure) from None
        if not answer.patch:
            return False
        if shown is None:
            raise InternalError(
                f'Internal error occurred: admission webhook "{hook.name}" attempted to modify the object, '
                "which is not supported for this operation"
            )
        try:
            patched = apply_json_patch(shown, answer.patch)
        except JsonPatchError as error:
            raise InternalError(f"Internal error occurred: {error}") from None
        if not isinstance(patched, dict):
            raise InternalError(f'Internal error occurred: admission webhook "{hook.name}" removed the object')
        before = attributes.obj
        returned = await in_version(attributes, patched, attributes.version)
        attributes.obj = attributes.settled(returned or {})
        return attributes.obj != before


class ValidatingWebhooks(_Webhooks):
    """Asked all at once; one refusal is enough."""

    name = "ValidatingAdmissionWebhook"
    mutating = False
    source = VALIDATING

    async def validate(self, attributes: Attributes) -> None:
        hooks = self._hooks()
        if not hooks or is_exempt(attributes):
            return
        wanted = [(hook, await self._wanted(hook, attributes)) for hook in hooks]
        calls = [self._judge(hook, attributes, invocation) for hook, invocation in wanted if invocation is not None]
        if not calls:
            return
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _judge(self, hook: _Hook, attributes: Attributes, invocation: Invocation) -> None:
        try:
            await self._ask(hook, attributes, invocation)
        except _Failed as failure:
            if not hook.ignores_failures:
                raise _failed_closed(hook, failure) from None
