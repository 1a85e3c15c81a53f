"""Scale steps of a control plane: one Machine is created or removed at a time."""

from __future__ import annotations

import random

import pytest

from herder.controllers.inmemory.controlplane.scale import Member, Step, next_step

CREATE = Step(create=True)


def up_to_date_member(name: str, **options: bool) -> Member:
    return Member(name, created=name, **options)


def outdated_member(name: str, **options: bool) -> Member:
    return Member(name, created=name, up_to_date=False, **options)


@pytest.mark.parametrize(
    ("replicas", "members", "step"),
    [
        pytest.param(1, [], CREATE, id="the first"),
        pytest.param(0, [], Step(), id="no replicas"),
        pytest.param(
            3, [up_to_date_member("a", ready=False)], Step(waits_for="Machine a is not ready yet"), id="one at a time"
        ),
        pytest.param(3, [up_to_date_member("a")], CREATE, id="next when the last is ready"),
        pytest.param(
            3, [up_to_date_member("a"), up_to_date_member("b"), up_to_date_member("c")], Step(), id="up to date"
        ),
        pytest.param(
            1,
            [up_to_date_member("a"), up_to_date_member("b"), up_to_date_member("c")],
            Step(remove="a"),
            id="surplus: the oldest is removed",
        ),
        pytest.param(
            2,
            [up_to_date_member("a"), up_to_date_member("b", ready=False), up_to_date_member("c")],
            Step(remove="b"),
            id="unready is removed first",
        ),
        pytest.param(
            2,
            [up_to_date_member("a"), up_to_date_member("b", ready=False), up_to_date_member("c", delete_first=True)],
            Step(remove="c"),
            id="annotated is removed first",
        ),
        pytest.param(
            2,
            [up_to_date_member("a", deleting=True)],
            Step(waits_for="Machine a is being deleted"),
            id="wait for a deletion",
        ),
        pytest.param(1, [outdated_member("a")], CREATE, id="replace: the new one first"),
        pytest.param(
            1,
            [outdated_member("a"), up_to_date_member("b", ready=False)],
            Step(waits_for="Machine b is not ready yet"),
            id="then wait",
        ),
        pytest.param(
            1, [outdated_member("a"), up_to_date_member("b")], Step(remove="a"), id="then the old one is removed"
        ),
        pytest.param(
            3,
            [outdated_member("a"), outdated_member("b"), up_to_date_member("c"), up_to_date_member("d")],
            Step(remove="a"),
            id="the oldest of the outdated",
        ),
        pytest.param(
            3,
            [outdated_member("a"), outdated_member("b", ready=False), outdated_member("c"), up_to_date_member("d")],
            Step(remove="b"),
            id="unready outdated is removed first",
        ),
        pytest.param(
            3, [outdated_member("a"), outdated_member("b"), up_to_date_member("c")], CREATE, id="next replacement"
        ),
        pytest.param(1, [outdated_member("a", ready=False)], CREATE, id="unready outdated is replaced too"),
        pytest.param(
            3,
            [up_to_date_member("a"), up_to_date_member("b"), up_to_date_member("c", to_remediate=True)],
            Step(remove="c"),
            id="unhealthy is removed",
        ),
        pytest.param(
            1,
            [up_to_date_member("a", to_remediate=True)],
            Step(waits_for="Machine a is unhealthy; it is replaced when the others are ready"),
            id="but not the last",
        ),
        pytest.param(
            3,
            [up_to_date_member("a"), up_to_date_member("b", ready=False), up_to_date_member("c", to_remediate=True)],
            Step(waits_for="Machine c is unhealthy; it is replaced when the others are ready"),
            id="nor while another starts",
        ),
    ],
)
def test_next_step(replicas: int, members: list[Member], step: Step) -> None:
    assert next_step(replicas, members) == step


@pytest.mark.parametrize("seed", range(20))
def test_rollout_completes_within_bounds_in_any_order(seed: int) -> None:
    rng = random.Random(seed)
    replicas = rng.choice([1, 3, 5])
    members = [outdated_member(f"old-{number}") for number in range(rng.randint(0, 5))]
    initial = len(members)
    for number in range(200):
        members = [member for member in members if not member.deleting]
        members = [member._replace(ready=member.ready or rng.random() < 0.5) for member in members]
        ready = sum(member.ready for member in members)
        step = next_step(replicas, members)
        if step.create:
            members.append(up_to_date_member(f"new-{number:03}", ready=False))
        if step.remove:
            assert ready > 1 or replicas == 0
            members = [member._replace(deleting=member.name == step.remove) for member in members]
        assert len(members) <= max(replicas + 1, initial)
    assert len(members) == replicas
    assert all(member.up_to_date and member.ready for member in members)
