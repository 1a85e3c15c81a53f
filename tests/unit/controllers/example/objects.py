"""Flocks as the API server serves them, and a view over them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from herder.api.example import FINALIZER, FLOCK, SECRET
from herder.controllers.example import flock as controller
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import EffectKey, EffectResult
from herder.engine.runtime.view import View
from tests.support.builders import new_object
from tests.support.views import view_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def flock(*, finalizer: bool = True, deleting: bool = False, **spec: Any) -> Object:
    return new_object(
        FLOCK,
        "f",
        "ns",
        finalizers=["example.com/other", FINALIZER] if finalizer else [],
        deleting=deleting,
        metadata={"uid": "flock-uid", "resourceVersion": "100", "generation": 3},
        spec={"size": 2, "minAvailable": 1, "message": "hello", "pauseSeconds": 0} | spec,
    )


def member(number: int, message: str = "hello", *, age: float = 3600) -> Object:
    obj = controller._member(flock(message=message), number, NOW - timedelta(seconds=age))
    obj["metadata"] |= {"uid": f"member-{number}", "resourceVersion": str(number + 1)}
    return obj


def key_secret() -> Object:
    metadata = {"uid": "key-uid", "resourceVersion": "50"}
    return new_object(SECRET, "f-key", "ns", metadata=metadata, data={"key": "c2VjcmV0"})


def view(*objects: Object, results: Mapping[EffectKey, EffectResult] | None = None) -> View:
    """A view of the flock over these objects."""
    return view_of(controller.CONTROLLER, "ns/f", objects, now=NOW, results=results)
