"""Flocks as the API server would show them, and a view over them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from herder.api.example import CONFIG_MAP, FINALIZER, FLOCK, SECRET
from herder.controllers.example import flock as controller
from herder.engine.control.cache import Cache, Key, controller_uid
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import EffectKey, EffectResult
from herder.engine.runtime.view import View

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def flock(*, finalizer: bool = True, deleting: bool = False, **spec: Any) -> Object:
    meta: Object = {"name": "f", "namespace": "ns", "uid": "flock-uid", "resourceVersion": "100", "generation": 3}
    if finalizer:
        meta["finalizers"] = ["example.com/other", FINALIZER]
    if deleting:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {
        "apiVersion": FLOCK.api_version,
        "kind": "Flock",
        "metadata": meta,
        "spec": {"size": 2, "minAvailable": 1, "message": "hello", "pauseSeconds": 0} | spec,
    }


def member(number: int, message: str = "hello", *, age: float = 3600) -> Object:
    obj = controller._member(flock(message=message), number, NOW - timedelta(seconds=age))
    obj["metadata"] |= {"uid": f"member-{number}", "resourceVersion": str(number + 1)}
    return obj


def key_secret() -> Object:
    meta = {"name": "f-key", "namespace": "ns", "uid": "key-uid", "resourceVersion": "50"}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": {"key": "c2VjcmV0"}}


def view(*objects: Object, results: Mapping[EffectKey, EffectResult] | None = None) -> View:
    caches: dict[Kind, Cache] = {}
    for kind in (FLOCK, CONFIG_MAP, SECRET):
        caches[kind] = Cache(kind, {"controller": controller_uid})
    by_name = {kind.kind: kind for kind in caches}
    for obj in objects:
        caches[by_name[obj["kind"]]].upsert(obj)
    return View(
        key=Key("ns", "f"),
        now=NOW,
        caches=caches,
        results=results or {},
        observe=lambda _wish: None,
        setting=str,
        seed=b"seed",
        strict=True,
    )
