"""Authorizer library: `authorizer.group("").resource("pods").check("create").allowed()`.

An expression only describes the request; the decision function is injected, so this module knows nothing about users or
RBAC. Bind the variable `authorizer` to `Authorizer(decide)` and `authorizer.requestResource` to a `ResourceCheck` of
the request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from herder.engine.schema.cel.declarations import Library
from herder.engine.schema.cel.errors import EvaluationError
from herder.engine.schema.cel.types import (
    AUTHORIZER,
    BOOL,
    DECISION,
    GROUP_CHECK,
    PATH_CHECK,
    RESOURCE_CHECK,
    STRING,
)

library = Library()


@dataclass(frozen=True, slots=True)
class Question:
    """An authorization request: either `path` is set, or group and resource (with optional attributes)."""

    verb: str = ""
    path: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    field_selector: str = ""
    label_selector: str = ""
    service_account: tuple[str, str] | None = None
    """Namespace and name of a service account to check instead of the requesting user."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Result of an authorization check."""

    cel_type = DECISION.name

    allowed: bool
    reason: str = ""
    error: str = ""


Decide = Callable[[Question], Decision]


@dataclass(frozen=True, slots=True)
class Authorizer:
    """Value of the variable `authorizer`."""

    cel_type = AUTHORIZER.name

    decide: Decide
    question: Question = Question()


@dataclass(frozen=True, slots=True)
class PathCheck(Authorizer):
    """Check of a non-resource path."""

    cel_type = PATH_CHECK.name


@dataclass(frozen=True, slots=True)
class GroupCheck(Authorizer):
    """Check of an API group, before a resource is chosen."""

    cel_type = GROUP_CHECK.name


@dataclass(frozen=True, slots=True)
class ResourceCheck(Authorizer):
    """Check of a resource, with optional subresource, namespace, name and selectors."""

    cel_type = RESOURCE_CHECK.name


@library.method("path", AUTHORIZER, STRING, returns=PATH_CHECK)
def path(authorizer: Authorizer, value: str) -> PathCheck:
    if not value.strip():
        raise EvaluationError("path must not be empty")
    return PathCheck(authorizer.decide, replace(authorizer.question, path=value))


@library.method("group", AUTHORIZER, STRING, returns=GROUP_CHECK)
def group(authorizer: Authorizer, value: str) -> GroupCheck:
    return GroupCheck(authorizer.decide, replace(authorizer.question, group=value))


@library.method("serviceAccount", AUTHORIZER, STRING, STRING, returns=AUTHORIZER)
def service_account(authorizer: Authorizer, namespace: str, name: str) -> Authorizer:
    from herder.engine.meta.names import dns1123_label, dns1123_subdomain

    if dns1123_subdomain(name):
        raise EvaluationError("Invalid service account name")
    if dns1123_label(namespace):
        raise EvaluationError("Invalid service account namespace")
    return Authorizer(authorizer.decide, replace(authorizer.question, service_account=(namespace, name)))


@library.method("resource", GROUP_CHECK, STRING, returns=RESOURCE_CHECK)
def resource(check: GroupCheck, value: str) -> ResourceCheck:
    if not value.strip():
        raise EvaluationError("resource must not be empty")
    return ResourceCheck(check.decide, replace(check.question, resource=value))


def _declare_narrowing(name: str, attribute: str) -> None:
    def narrowed(check: ResourceCheck, value: str) -> ResourceCheck:
        narrower: dict[str, Any] = {attribute: value}
        return ResourceCheck(check.decide, replace(check.question, **narrower))

    library.method(name, RESOURCE_CHECK, STRING, returns=RESOURCE_CHECK)(narrowed)


for _method, _attribute in {
    "subresource": "subresource",
    "namespace": "namespace",
    "name": "name",
    "fieldSelector": "field_selector",
    "labelSelector": "label_selector",
}.items():
    _declare_narrowing(_method, _attribute)


@library.method("check", PATH_CHECK, STRING, returns=DECISION)
@library.method("check", RESOURCE_CHECK, STRING, returns=DECISION)
def check(question: Authorizer, verb: str) -> Decision:
    return question.decide(replace(question.question, verb=verb))


library.method("allowed", DECISION, returns=BOOL)(lambda decision: decision.allowed)
library.method("reason", DECISION, returns=STRING)(lambda decision: decision.reason)
library.method("errored", DECISION, returns=BOOL)(lambda decision: bool(decision.error))
library.method("error", DECISION, returns=STRING)(lambda decision: decision.error)
