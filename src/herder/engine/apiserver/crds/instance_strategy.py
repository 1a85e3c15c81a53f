"""Strategy of custom resources: rules common to all of them, besides their schemas."""

from __future__ import annotations

from collections.abc import Iterable

from herder.engine.apiserver.registry.strategy import Context, Strategy
from herder.engine.meta import names
from herder.engine.meta.errors import forbidden, show
from herder.engine.meta.kinds import GroupResource, Object

_STANDARD_FINALIZERS = {"kubernetes", "orphan", "foregroundDeletion"}


class CustomStrategy(Strategy):
    """Strategy of the instances of one CRD."""

    unconditional_update = False

    def __init__(self, resource: GroupResource, *, terminating: bool) -> None:
        self.resource = resource
        self.terminating = terminating

    def prepare_create(self, obj: Object, context: Context) -> None:
        if self.terminating:
            name = obj.get("metadata", {}).get("name", "")
            raise forbidden(self.resource, name, "create not allowed while custom resource definition is terminating")

    def warnings(self, obj: Object, old: Object | None) -> Iterable[str]:
        present = set((old or {}).get("metadata", {}).get("finalizers") or ())
        for finalizer in sorted(set(obj.get("metadata", {}).get("finalizers") or ()) - present):
            yield from _finalizer_warnings(finalizer)


def _finalizer_warnings(finalizer: str) -> Iterable[str]:
    for problem in names.qualified_name(finalizer):
        yield f"metadata.finalizers: {show(finalizer)}: {problem}"
    if "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
        path = " including a path (/)" if "." in finalizer else ""
        yield (
            f"metadata.finalizers: {show(finalizer)}: prefer a domain-qualified finalizer name{path} to avoid "
            "accidental conflicts with other finalizer writers"
        )
