"""CEL matchConditions of webhooks and admission policies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from herder.engine.apiserver.admission.chain import Attributes
from herder.engine.apiserver.admission.matching import Invocation, in_version
from herder.engine.apiserver.admission.objects import NAMESPACES, Objects
from herder.engine.apiserver.admission.webhooks.review import request_of
from herder.engine.apiserver.auth.access import AccessAttributes, Authorizer
from herder.engine.apiserver.auth.users import service_account_user
from herder.engine.meta.kinds import Object
from herder.engine.meta.work import is_large_computation

if TYPE_CHECKING:
    from herder.engine.schema.cel import Env, Program
    from herder.engine.schema.cel.library.authorizer import Decision, Question


_DECIDE_SECONDS = 10.0  # within which the event loop answers a thread, unless it has ended


class ConditionError(ValueError):
    """An expression failed to compile or to evaluate."""


@dataclass(slots=True)
class EvaluationContext:
    """CEL variables of one write. They are built on first use."""

    attributes: Attributes
    invocation: Invocation
    objects: Objects
    authorizer: Authorizer
    obj: Object | None
    old: Object | None
    loop: asyncio.AbstractEventLoop
    _bindings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    async def of(cls, attributes: Attributes, invocation: Invocation, objects: Objects, authorizer: Authorizer) -> Self:
        obj = await in_version(attributes, attributes.obj, invocation.version)
        old = await in_version(attributes, attributes.old, invocation.version)
        return cls(attributes, invocation, objects, authorizer, obj, old, asyncio.get_running_loop())

    def bindings(self) -> dict[str, Any]:
        if not self._bindings:
            from herder.engine.schema.cel.library.authorizer import Authorizer as CelAuthorizer
            from herder.engine.schema.cel.library.authorizer import Question, ResourceCheck

            attributes = self.attributes
            request = request_of(attributes, self.invocation, obj=None, old=None, uid="")
            request_resource = Question(
                group=attributes.resource.group,
                resource=attributes.resource.plural,
                subresource=attributes.subresource,
                namespace=attributes.namespace,
                name=attributes.name,
            )
            self._bindings = {
                "object": self.obj,
                "oldObject": self.old,
                "request": {name: request[name] for name in request if name not in ("uid", "object", "oldObject")},
                "namespaceObject": self._namespace(),
                "authorizer": CelAuthorizer(self._decide),
                "authorizer.requestResource": ResourceCheck(self._decide, request_resource),
            }
        return self._bindings

    def _decide(self, question: Question) -> Decision:
        """Authorize a check of an expression (`authorizer`), for the request's user or a service account.

        The authorizer belongs to the event loop, and expensive expressions run in a thread.
        """
        if is_large_computation() and not _is_running(self.loop):
            return asyncio.run_coroutine_threadsafe(self._decide_on_loop(question), self.loop).result(_DECIDE_SECONDS)
        return self._decide_here(question)

    async def _decide_on_loop(self, question: Question) -> Decision:
        return self._decide_here(question)

    def _decide_here(self, question: Question) -> Decision:
        from herder.engine.schema.cel.library.authorizer import Decision

        user = self.attributes.user
        if question.service_account is not None:
            user = service_account_user(*question.service_account)
        decision = self.authorizer.authorize(
            user,
            AccessAttributes(
                question.verb,
                question.group,
                "*",
                question.resource,
                subresource=question.subresource,
                namespace=question.namespace,
                name=question.name,
                path=question.path,
            ),
        )
        return Decision(decision.allowed, decision.reason)

    def _namespace(self) -> Object | None:
        attributes = self.attributes
        if not attributes.namespace or attributes.resource.group_resource == NAMESPACES:
            return None
        return self.objects.get(NAMESPACES, "", attributes.namespace)


class Conditions:
    """Expressions that must all be true. Compiled on first use, in the webhook environment unless `env` is given."""

    def __init__(self, conditions: Iterable[Object], env: Env | None = None) -> None:
        self._texts = [str(item.get("expression") or "") for item in conditions]
        self._env = env
        self._programs: list[Program] | None = None

    def __bool__(self) -> bool:
        return bool(self._texts)

    def all_true(self, bindings: Mapping[str, Any]) -> bool:
        """Whether all expressions are true. One that is false wins over errors; otherwise all errors are raised
        together."""
        if not self._texts:
            return True
        from herder.engine.schema.cel import CelError

        errors: list[str] = []
        for text, program in zip(self._texts, self._compile(), strict=True):
            try:
                if program.evaluate(bindings) is False:
                    return False
            except CelError as error:
                errors.append(evaluation_error(text, error))
        if errors:
            raise ConditionError(errors[0] if len(errors) == 1 else "[" + ", ".join(errors) + "]")
        return True

    def _compile(self) -> list[Program]:
        if self._programs is None:
            from herder.engine.schema.cel import CelError, admission_env, compile

            env = self._env or admission_env()
            try:
                self._programs = [compile(text, env) for text in self._texts]
            except CelError as error:
                raise ConditionError(f"compilation failed: {error}") from None
        return self._programs


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this thread is that of the event loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def evaluation_error(text: str, error: Exception) -> str:
    """Return kube-apiserver's message for an expression that failed."""
    return f"expression '{text}' resulted in error: {error}"
