"""Guards deny harmful actions, whichever controller decided them."""

from __future__ import annotations

import pytest

from herder.api.example import CONFIG_MAP, FLOCK
from herder.api.guards import GUARDS
from herder.api.guards.example import keep_flock_minimum
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Delete, Effect, Ref
from tests.unit.controllers.example.objects import flock, member, view

DELETE = Delete(Ref(CONFIG_MAP, "f-1", "ns"), "member-1", "for no good reason")


@pytest.mark.parametrize(
    ("objects", "denied"),
    [
        pytest.param([flock(minAvailable=2), member(0), member(1)], True, id="at the minimum"),
        pytest.param([flock(minAvailable=2), member(0), member(1), member(2)], False, id="above it"),
        pytest.param(
            [flock(minAvailable=2, deleting=True), member(0), member(1)], False, id="the flock is being deleted"
        ),
        pytest.param([member(0), member(1)], False, id="no flock"),
        pytest.param([flock(minAvailable=2)], False, id="no such member"),
    ],
)
def test_a_flock_keeps_its_minimum(objects: list[Object], denied: bool) -> None:
    refusal = keep_flock_minimum(DELETE, view(*objects), ())
    assert (refusal is not None) == denied
    if refusal is not None:
        assert refusal.reason == "ConfigMap ns/f-1: deletion denied; 1 would remain, minAvailable is 2"


def test_other_actions_are_allowed() -> None:
    flock_view = view(flock(minAvailable=2), member(0), member(1))
    others = (Delete(Ref(FLOCK, "f", "ns"), "flock-uid", "wanted"), Effect("make-key", ("k",), {}, "wanted"))
    assert [guard(action, flock_view, ()) for guard in GUARDS for action in others] == [None] * 2 * len(GUARDS)
