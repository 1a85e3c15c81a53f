"""A view for one reconcile of a pure reconciler, over objects as the API server would return them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from herder.engine.control.cache import Cache, Key, controller_uid
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.contact import EVER
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import EffectKey, EffectResult, Observe, Refusal
from herder.engine.runtime.groups import Groups
from herder.engine.runtime.view import ConnectionStatus, Observed, Unreachable, View

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def view_of(
    controller: Controller,
    key: str,
    objects: Iterable[Object] = (),
    *,
    now: datetime = NOW,
    dynamic_kinds: Iterable[Kind] = (),
    results: Mapping[EffectKey, EffectResult] | None = None,
    observed: Callable[[Observe], Observed | Unreachable | None] = lambda _observe: None,
    connections: Mapping[str, ConnectionStatus] | None = None,
    settings: Callable[[str], str] = str,
    refused: Refusal | None = None,
    connected_since: datetime = EVER,
) -> View:
    """A View of the object `key` ("namespace/name").

    Objects without a resourceVersion get one. Their kinds must be watched by the controller or be in `dynamic_kinds`.
    """
    declared = [watch.kind for watch in controller.kinds()]
    caches = {kind: Cache(kind, controller.indexers(kind)) for kind in declared}
    dynamic_caches = {kind: Cache(kind, {"controller": controller_uid}) for kind in dynamic_kinds}
    for kind, cache in caches.items():
        cache.set_selectors("", kind.fields)
    for number, obj in enumerate(objects, start=1):
        meta = {"resourceVersion": str(number), "uid": f"{obj['kind']}-{obj['metadata']['name']}"} | obj["metadata"]
        for kind, cache in (caches | dynamic_caches).items():
            if (kind.api_version, kind.kind) == (obj["apiVersion"], obj["kind"]) and cache.matches(obj):
                cache.upsert({**obj, "metadata": meta})
    namespace, _, name = key.rpartition("/")

    def about(key: Key) -> View:
        return View(
            key=key,
            now=now,
            caches=caches,
            results=results or {},
            observe=observed,
            setting=settings,
            seed=b"seed",
            strict=True,
            connection=(connections or {}).get,
            dynamic_cache=dynamic_caches.get if controller.dynamic_watches is not None else None,
            groups=lambda grouping, scope: Groups(grouping, caches, about, strict=True).in_scope(scope),
            refused=refused,
            connected_since=connected_since,
        )

    return about(Key(namespace, name))
