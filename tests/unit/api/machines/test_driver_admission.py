"""A NodeDriver cannot be deactivated while objects of its kinds exist."""

from __future__ import annotations

import pytest

from herder.api.machines.drivers.admission import refuse_deactivation, removes_kinds
from herder.engine.meta.kinds import Object


def driver(*, active: bool = True, name: str = "linode") -> Object:
    return {"metadata": {"name": "nd-1"}, "spec": {"active": active, "displayName": name}}


REMAINING = ["LinodeMachine default/b", "LinodeConfig default/a"]
MESSAGE = (
    "2 objects of its kinds still exist (LinodeConfig default/a, LinodeMachine default/b); "
    "delete them first, or leave driver linode active"
)


INVALID = 'NodeDriver.management.cattle.io "nd-1" is invalid:'
FORBIDDEN = 'nodedrivers.management.cattle.io "nd-1" is forbidden:'


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (driver(), driver(active=False), f"{INVALID} spec.active: Forbidden: cannot be deactivated: {MESSAGE}"),
        (driver(), None, f"{FORBIDDEN} cannot be deleted: {MESSAGE}"),
        (driver(active=False), None, f"{FORBIDDEN} cannot be deleted: {MESSAGE}"),
        (
            driver(),
            driver(name="other"),
            f"{INVALID} spec.displayName: Forbidden: cannot become driver other: {MESSAGE}",
        ),
        (driver(), driver(), None),
        (driver(active=False), driver(active=False), None),
        (driver(active=False), driver(), None),
    ],
)
def test_changes_that_remove_kinds_in_use_are_rejected(old: Object, new: Object | None, expected: str | None) -> None:
    error = refuse_deactivation(old, new, REMAINING)
    assert (str(error) if error else None) == expected
    assert refuse_deactivation(old, new, []) is None
    assert removes_kinds(old, new) == bool(expected)


def test_the_error_names_some_objects_and_counts_all() -> None:
    error = refuse_deactivation(driver(), None, [f"LinodeMachine default/{number}" for number in range(9)])
    message = str(error)
    assert "9 objects of its kinds still exist (LinodeMachine default/0, " in message
    assert "LinodeMachine default/4 and 4 more)" in message
