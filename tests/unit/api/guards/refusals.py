"""Refusals of actions, with their reasons."""

from __future__ import annotations

from collections.abc import Sequence

from herder.api.guards import GUARDS
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import Observe, Refusal
from herder.engine.runtime.executor import Action, Guard
from herder.engine.runtime.view import Observed, Unreachable
from tests.support.views import NOW, view_of
from tests.unit.api.guards.plan_writes import HEALTHY, READER
from tests.unit.controllers.planner.objects import NAMESPACE


def refusal(
    action: Action,
    *existing: Object,
    before: Sequence[Action] = (),
    cluster: tuple[Object, ...] = HEALTHY,
    nodes: Sequence[Object] | None = None,
    guards: Sequence[Guard] = GUARDS,
    reader: Controller = READER,
    key: str = f"{NAMESPACE}/x",
) -> str:
    """The first refusal, as GUARD: REASON; "" if the action is allowed. `nodes`: None if the cluster is unreachable.
    `key`: the object of the decision."""

    def observed(_request: Observe) -> Observed | Unreachable:
        return Unreachable("no agent is connected", NOW) if nodes is None else Observed(tuple(nodes), NOW)

    view = view_of(reader, key, (*cluster, *existing), observed=observed)
    found = [text for guard in guards if (text := _text(guard(action, view, list(before))))]
    return found[0] if found else ""


def _text(found: Refusal | None) -> str:
    return f"{found.guard}: {found.reason}" if found is not None else ""
