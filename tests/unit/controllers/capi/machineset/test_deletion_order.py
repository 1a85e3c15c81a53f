"""Order in which a MachineSet deletes surplus Machines."""

from __future__ import annotations

import pytest

from herder.controllers.capi.machineset.deletion import by_priority, priority
from herder.engine.meta.kinds import Object
from tests.support.views import NOW
from tests.unit.controllers.capi.machineset.objects import machine

DELETE_ANNOTATION = {"cluster.x-k8s.io/delete-machine": ""}


@pytest.mark.parametrize("order", ["Random", "Oldest", "Newest"])
@pytest.mark.parametrize(
    ("machine_object", "expected"),
    [
        (machine("m", deleting=True), 100),
        (machine("m", deleting=True, annotations=DELETE_ANNOTATION), 100),
        (machine("m", annotations=DELETE_ANNOTATION), 80),
        (machine("m", node=False, annotations=DELETE_ANNOTATION), 80),
        (machine("m", node=False), 50),
        (machine("m", NodeHealthy="False"), 50),
        (machine("m", HealthCheckSucceeded="False"), 50),
    ],
)
def test_deleting_annotated_and_unhealthy_machines_have_fixed_priorities(
    machine_object: Object, expected: float, order: str
) -> None:
    assert priority(machine_object, order, NOW) == expected


@pytest.mark.parametrize(
    ("order", "days", "expected"),
    [
        ("Random", 0, 20),
        ("Random", 100, 20),
        ("Oldest", 0, 0),
        ("Oldest", 10, 31.6),
        ("Oldest", 1000, 50),
        ("Oldest", -1, 0),
        ("Newest", 0, 50),
        ("Newest", 10, 18.4),
        ("Newest", 1000, 0),
    ],
)
def test_priority_of_healthy_machines_depends_on_the_order_policy(order: str, days: float, expected: float) -> None:
    assert priority(machine("m", days=days), order, NOW) == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize(
    "unknown", [machine("m"), machine("m", NodeHealthy="Unknown"), machine("m", HealthCheckSucceeded="Unknown")]
)
def test_unknown_conditions_do_not_raise_the_priority(unknown: Object) -> None:
    assert priority(unknown, "Random", NOW) == 20


@pytest.mark.parametrize(
    ("order", "machines", "expected"),
    [
        ("Oldest", [machine("b", days=1), machine("a", days=1), machine("c", days=9)], "c a b"),
        ("Newest", [machine("b", days=1), machine("a", days=1), machine("c", days=9)], "a b c"),
        (
            "Oldest",
            [machine("old", days=9), machine("broken", node=False), machine("going", deleting=True)],
            "going broken old",
        ),
    ],
)
def test_ties_are_broken_by_name(order: str, machines: list[Object], expected: str) -> None:
    assert _names(by_priority(machines, order, NOW)) == expected.split()


def test_random_order_is_stable_and_not_alphabetical() -> None:
    machines = [machine(f"m{number:02}") for number in range(20)]
    first = _names(by_priority(machines, "Random", NOW))
    assert first != sorted(first)
    assert first == _names(by_priority(machines[::-1], "Random", NOW))


def test_unavailable_machines_are_deleted_first_among_equals() -> None:
    """A rollout waits for available Machines, so unavailable ones are deleted first among equals."""
    machines = [machine(f"m{number:02}", Available="True") for number in range(20)]
    machines.append(machine("spare", Available="False"))
    assert _names(by_priority(machines, "Random", NOW))[0] == "spare"


def _names(machines: list[Object]) -> list[str]:
    return [each["metadata"]["name"] for each in machines]
