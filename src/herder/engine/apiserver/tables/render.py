"""A list, or one object, as a meta.k8s.io/v1 Table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from herder.engine.apiserver.resources import Resource
from herder.engine.meta.kinds import Object


def render(
    resource: Resource,
    version: str,
    objects: Sequence[Object],
    *,
    now: datetime,
    include_object: str = "Metadata",
    list_metadata: Object | None = None,
    with_columns: bool = True,
) -> Object:
    """`include_object` is None, Metadata or Object, as the query parameter says; later watch events carry no columns."""
    raise NotImplementedError
