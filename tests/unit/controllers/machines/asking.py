"""Passes of a reconciler that first asks the server something."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import Decision, EffectKey, EffectResult
from herder.engine.runtime.view import View


def answered(
    controller: Controller,
    view_with: Callable[[Mapping[EffectKey, EffectResult]], View],
    listed: Sequence[str] | None,
    results: Mapping[EffectKey, EffectResult] | None = None,
) -> Decision:
    """What is decided once the server has said which objects it has; without an answer, the question."""
    view = view_with(results or {})
    decision = controller.reconcile(view)
    view.check_unchanged()
    questions = [effect.key for effect in decision.effects if effect.performer == "list-names"]
    if listed is None or not questions:
        return decision
    return controller.reconcile(view_with({**(results or {}), questions[0]: EffectResult(list(listed))}))
