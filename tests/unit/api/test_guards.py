"""The safety kernel: what it refuses, whoever decided it."""

from __future__ import annotations

import pytest

from herder.api.example import CONFIG_MAP, FLOCK
from herder.api.guards import GUARDS
from herder.api.guards.example import keep_flock_minimum
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Delete, Effect, Ref
from tests.unit.controllers.example.flocks import flock, member, view

DELETE = Delete(Ref(CONFIG_MAP, "f-1", "ns"), "member-1", "for no good reason")


@pytest.mark.parametrize(
    ("objects", "refused"),
    [
        pytest.param([flock(minAvailable=2), member(0), member(1)], True, id="at the minimum"),
        pytest.param([flock(minAvailable=2), member(0), member(1), member(2)], False, id="above it"),
        pytest.param([flock(minAvailable=2, deleting=True), member(0), member(1)], False, id="the flock goes too"),
        pytest.param([member(0), member(1)], False, id="no flock any more"),
        pytest.param([flock(minAvailable=2)], False, id="no such member"),
    ],
)
def test_a_flock_keeps_its_minimum(objects: list[Object], refused: bool) -> None:
    refusal = keep_flock_minimum(DELETE, view(*objects), ())
    assert (refusal is not None) == refused
    if refusal is not None:
        assert refusal.reason == "ConfigMap ns/f-1: deletion denied; 1 would remain, minAvailable is 2"


def test_other_acts_pass() -> None:
    seen = view(flock(minAvailable=2), member(0), member(1))
    others = (Delete(Ref(FLOCK, "f", "ns"), "flock-uid", "wanted"), Effect("make-key", ("k",), {}, "wanted"))
    assert [guard(act, seen, ()) for guard in GUARDS for act in others] == [None] * 2 * len(GUARDS)
