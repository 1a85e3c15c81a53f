"""Run the hooks of a built-in kind in the order of a request."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from herder.engine.apiserver.builtin import resources
from herder.engine.apiserver.registry.resources import Resource
from herder.engine.apiserver.registry.strategy import Context
from herder.engine.meta.errors import FieldError, invalid, invalid_value
from herder.engine.meta.kinds import GroupVersionKind, Object
from herder.engine.wire import User

BY_KIND = {(resource.group, resource.kind): resource for resource in resources()}
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def context(subresource: str = "") -> Context:
    return Context(
        user=User("admin", groups=("system:masters",)),
        now=NOW,
        entropy=lambda count: bytes(range(count)),
        lookup=lambda *_: None,
        subresource=subresource,
    )


def resource_of(obj: Object) -> Resource:
    kind = GroupVersionKind.of(obj)
    return BY_KIND[kind.group, kind.kind]


def read(obj: Object) -> Object:
    """Decode and default an object."""
    model = resource_of(obj).versions[GroupVersionKind.of(obj).version].model
    decoded, _ = model.decode(copy.deepcopy(obj))
    model.default(decoded)
    return decoded


def create(obj: Object) -> Object:
    """Return the object as a create would store it. Raises Invalid."""
    resource, created = resource_of(obj), read(obj)
    metadata = created["metadata"]
    if resource.namespaced:
        metadata["namespace"] = "default"
    metadata["uid"] = "0ebd8a07-7a8e-4d5a-9c1b-d5a2a8d1e2f3"
    resource.strategy.prepare_create(created, context())
    problems: list[Any] = []
    for complaint in resource.strategy.name_check(metadata["name"]):
        problems.append(invalid_value("metadata.name", metadata["name"], complaint))
    _refuse(created, [*problems, *resource.strategy.validate(created, context())])
    return created


def update(old: Object, obj: Object, subresource: str = "") -> Object:
    resource, created = resource_of(obj), read(obj)
    for key in ("uid", "namespace"):
        if key in old["metadata"]:
            created["metadata"].setdefault(key, old["metadata"][key])
    resource.strategy.prepare_update(created, old, context(subresource))
    problems = [
        *resource.strategy.validate(created, context(subresource)),
        *resource.strategy.validate_update(created, old, context(subresource)),
    ]
    _refuse(created, problems)
    return created


def _refuse(obj: Object, problems: Iterable[FieldError]) -> None:
    problems = list(problems)
    if problems:
        raise invalid(resource_of(obj).group_kind, obj["metadata"]["name"], problems)
