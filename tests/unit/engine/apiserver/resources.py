"""Resources for tests that do not depend on the type of an object."""

from __future__ import annotations

from typing import Any

from herder.engine.apiserver.registry.resources import Resource, Version
from herder.engine.meta.errors import FieldError
from herder.engine.meta.kinds import Object


class Shapeless:
    """A type that accepts any object."""

    merge_type: Any = None

    def decode(self, obj: Object) -> tuple[Object, list[str]]:
        return dict(obj), []

    def default(self, obj: Object) -> None:
        return None

    def validate(
        self, obj: Object, old: Object | None, *, subresource: str = "", warnings: list[str] | None = None
    ) -> list[FieldError]:
        return []

    def openapi(self) -> Object:
        return {"type": "object"}


def resource(
    plural: str,
    *,
    group: str = "",
    kind: str = "",
    namespaced: bool = True,
    versions: tuple[str, ...] = ("v1",),
    **more: Any,
) -> Resource:
    return Resource(
        group=group,
        plural=plural,
        singular=plural.removesuffix("s"),
        kind=kind or plural.removesuffix("s").capitalize(),
        namespaced=namespaced,
        versions={name: Version(name, Shapeless()) for name in versions},
        storage_version=versions[0],
        **more,
    )
