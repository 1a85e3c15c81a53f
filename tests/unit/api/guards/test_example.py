"""Which deletions the guard of the example counts."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.example import CONFIG_MAP, FLOCK
from herder.api.guards.example import keep_flock_minimum
from herder.controllers.example.flock import CONTROLLER
from herder.engine.runtime.decision import Apply, Delete, Ref
from tests.support.views import view_of
from tests.unit.api.test_guards import DELETE
from tests.unit.controllers.example.objects import flock, member, view

OTHER = Delete(Ref(CONFIG_MAP, "f-0", "ns"), "member-0", "for no good reason")
DENIED = "ConfigMap ns/f-1: deletion denied; {} would remain, minAvailable is {}"


@pytest.mark.parametrize(
    ("members", "minimum", "before", "reason"),
    [
        (3, 2, [], ""),
        (3, 2, [OTHER], DENIED.format(1, 2)),
        (3, 2, [OTHER, OTHER], DENIED.format(0, 2)),
        (3, 2, [Delete(Ref(FLOCK, "f", "ns"), "flock-uid", "gone")], ""),
        (3, 2, [Apply(CONFIG_MAP, member(0), "a change")], ""),
        (2, 2, [], DENIED.format(1, 2)),
        (2, 1, [], ""),
    ],
)
def test_deletions_of_one_decision_count_together(members: int, minimum: int, before: list[Any], reason: str) -> None:
    refusal = keep_flock_minimum(DELETE, view(flock(minAvailable=minimum), *map(member, range(members))), before)
    assert (refusal.reason if refusal else "") == reason
    assert refusal is None or refusal.guard == "keep-flock-minimum"


def test_the_default_minimum_is_one() -> None:
    without = flock()
    del without["spec"]["minAvailable"]
    assert keep_flock_minimum(DELETE, view(without, member(0), member(1)), ()) is None
    refusal = keep_flock_minimum(DELETE, view(without, member(1)), ())
    assert refusal is not None
    assert refusal.reason == DENIED.format(0, 1)


def test_the_flock_is_that_of_the_member_wherever_the_decision_is_made() -> None:
    elsewhere = view_of(CONTROLLER, "elsewhere/f", (flock(minAvailable=2), member(0), member(1)))
    assert keep_flock_minimum(DELETE, elsewhere, ()) is not None


def test_which_actions_are_checked() -> None:
    known = view(flock(minAvailable=2), member(0), member(1))
    elsewhere = Delete(Ref(CONFIG_MAP, "f-1", "other"), "member-1", "another namespace")
    unlabelled = member(1)
    unlabelled["metadata"]["labels"] = None
    actions: list[Any] = [Delete(Ref(FLOCK, "f-1", "ns"), "uid", "gone"), Apply(CONFIG_MAP, member(1), "x"), elsewhere]
    assert [keep_flock_minimum(action, known, ()) for action in actions] == [None] * len(actions)
    assert keep_flock_minimum(DELETE, view(flock(minAvailable=2), member(0), unlabelled), ()) is None
