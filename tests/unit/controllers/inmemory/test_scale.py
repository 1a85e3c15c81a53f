"""What a control plane does next: one step at a time."""

from __future__ import annotations

import random

import pytest

from herder.controllers.inmemory.controlplane.scale import Member, Step, next_step

CREATE = Step(create=True)


def up(name: str, **more: bool) -> Member:
    return Member(name, created=name, **more)


def old(name: str, **more: bool) -> Member:
    return Member(name, created=name, up_to_date=False, **more)


@pytest.mark.parametrize(
    ("wanted", "members", "step"),
    [
        pytest.param(1, [], CREATE, id="the first"),
        pytest.param(0, [], Step(), id="none is wanted"),
        pytest.param(3, [up("a", ready=False)], Step(waits_for="Machine a is not ready yet"), id="one at a time"),
        pytest.param(3, [up("a")], CREATE, id="the next when the last is ready"),
        pytest.param(3, [up("a"), up("b"), up("c")], Step(), id="all is well"),
        pytest.param(1, [up("a"), up("b"), up("c")], Step(remove="a"), id="too many: the oldest goes"),
        pytest.param(2, [up("a"), up("b", ready=False), up("c")], Step(remove="b"), id="who is not ready goes first"),
        pytest.param(
            2, [up("a"), up("b", ready=False), up("c", delete_first=True)], Step(remove="c"), id="as annotated"
        ),
        pytest.param(
            2, [up("a", deleting=True)], Step(waits_for="Machine a is being deleted"), id="wait for a deletion"
        ),
        pytest.param(1, [old("a")], CREATE, id="replace: the new one first"),
        pytest.param(1, [old("a"), up("b", ready=False)], Step(waits_for="Machine b is not ready yet"), id="then wait"),
        pytest.param(1, [old("a"), up("b")], Step(remove="a"), id="then the old one goes"),
        pytest.param(3, [old("a"), old("b"), up("c"), up("d")], Step(remove="a"), id="the oldest of the outdated"),
        pytest.param(
            3, [old("a"), old("b", ready=False), old("c"), up("d")], Step(remove="b"), id="a broken one before"
        ),
        pytest.param(3, [old("a"), old("b"), up("c")], CREATE, id="and again"),
        pytest.param(1, [old("a", ready=False)], CREATE, id="an outdated one that is broken is replaced too"),
        pytest.param(3, [up("a"), up("b"), up("c", to_remediate=True)], Step(remove="c"), id="an unhealthy one goes"),
        pytest.param(
            1,
            [up("a", to_remediate=True)],
            Step(waits_for="Machine a is unhealthy; it is replaced when the others are ready"),
            id="but never the last",
        ),
        pytest.param(
            3,
            [up("a"), up("b", ready=False), up("c", to_remediate=True)],
            Step(waits_for="Machine c is unhealthy; it is replaced when the others are ready"),
            id="nor while another starts",
        ),
    ],
)
def test_the_next_step(wanted: int, members: list[Member], step: Step) -> None:
    assert next_step(wanted, members) == step


@pytest.mark.parametrize("seed", range(20))
def test_whatever_becomes_ready_when_it_arrives_and_stays_within_bounds(seed: int) -> None:
    chance = random.Random(seed)
    wanted = chance.choice([1, 3, 5])
    members = [old(f"old-{number}") for number in range(chance.randint(0, 5))]
    begun = len(members)
    for number in range(200):
        members = [member for member in members if not member.deleting]
        members = [member._replace(ready=member.ready or chance.random() < 0.5) for member in members]
        ready = sum(member.ready for member in members)
        step = next_step(wanted, members)
        if step.create:
            members.append(up(f"new-{number:03}", ready=False))
        if step.remove:
            assert ready > 1 or wanted == 0
            members = [member._replace(deleting=member.name == step.remove) for member in members]
        assert len(members) <= max(wanted + 1, begun)
    assert len(members) == wanted
    assert all(member.up_to_date and member.ready for member in members)
