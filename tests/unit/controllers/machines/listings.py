"""Reconciles of a controller that first lists objects on the API server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import Decision, EffectKey, EffectResult
from tests.support.builders import reconcile


def reconcile_with_listing(
    controller: Controller,
    key: str,
    *objects: Object,
    listed: Sequence[str] | None,
    results: Mapping[EffectKey, EffectResult] | None = None,
    **options: Any,
) -> Decision:
    """The decision after the API server has listed `listed`; without `listed`, the decision that requests the list."""
    known = dict(results or {})
    decision = reconcile(controller, key, *objects, results=known, **options)
    requests = [effect.key for effect in decision.effects if effect.performer == "list-names"]
    if listed is None or not requests:
        return decision
    known[requests[0]] = EffectResult(list(listed))
    return reconcile(controller, key, *objects, results=known, **options)
