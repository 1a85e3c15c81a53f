"""CEL conditions on a write: matchConditions of webhooks and policies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from herder.engine.apiserver.admission.chain import Attributes
from herder.engine.apiserver.admission.matching import Invocation, in_version
from herder.engine.apiserver.admission.objects import NAMESPACES, Objects
from herder.engine.apiserver.admission.review import request_of
from herder.engine.apiserver.auth.access import AccessAttributes, Authorizer
from herder.engine.apiserver.auth.users import service_account_user
from herder.engine.meta.kinds import Object

if TYPE_CHECKING:
    from herder.engine.schema.cel import Env, Program
    from herder.engine.schema.cel.library.authorizer import Decision, Question


class ConditionError(ValueError):
    """Expressions that could not be compiled or evaluated."""


@dataclass(slots=True)
class Context:
    """One write, as expressions see it. What they see is put together once, when the first of them looks."""

    attributes: Attributes
    invocation: Invocation
    objects: Objects
    authorizer: Authorizer
    obj: Object | None
    old: Object | None
    _bindings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    async def of(cls, attributes: Attributes, invocation: Invocation, objects: Objects, authorizer: Authorizer) -> Self:
        obj = await in_version(attributes, attributes.obj, invocation.version)
        old = await in_version(attributes, attributes.old, invocation.version)
        return cls(attributes, invocation, objects, authorizer, obj, old)

    def bindings(self) -> dict[str, Any]:
        if not self._bindings:
            from herder.engine.schema.cel.library.authorizer import Authorizer as Asking
            from herder.engine.schema.cel.library.authorizer import Question, ResourceCheck

            attributes = self.attributes
            request = request_of(attributes, self.invocation, obj=None, old=None, uid="")
            about = Question(
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
                "authorizer": Asking(self._decide),
                "authorizer.requestResource": ResourceCheck(self._decide, about),
            }
        return self._bindings

    def _decide(self, question: Question) -> Decision:
        """Answers an expression that asks what the caller, or a service account, may do."""
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
    """Expressions that must all hold. Compiled at first use, in the environment of webhooks unless another is given."""

    def __init__(self, conditions: Iterable[Object], env: Env | None = None) -> None:
        self._texts = [str(item.get("expression") or "") for item in conditions]
        self._env = env
        self._programs: list[Program] | None = None

    def __bool__(self) -> bool:
        return bool(self._texts)

    def hold(self, bindings: Mapping[str, Any]) -> bool:
        """One that is false settles it, whatever else went wrong; otherwise errors are raised together."""
        if not self._texts:
            return True
        from herder.engine.schema.cel import CelError

        errors: list[str] = []
        for text, program in zip(self._texts, self._compile(), strict=True):
            try:
                if program.evaluate(bindings) is False:
                    return False
            except CelError as error:
                errors.append(told(text, error))
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


def told(text: str, error: Exception) -> str:
    return f"expression '{text}' resulted in error: {error}"
