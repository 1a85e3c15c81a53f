"""A definition as a served resource."""

from __future__ import annotations

from herder.engine.apiserver.resources import Resource
from herder.engine.meta.kinds import Object


def resource_from_crd(crd: Object) -> Resource:
    raise NotImplementedError
