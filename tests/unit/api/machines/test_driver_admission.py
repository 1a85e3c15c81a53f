"""A NodeDriver cannot be switched off while there are objects of its kinds."""

from __future__ import annotations

import pytest

from herder.api.machines.drivers.admission import refuse_deactivation, removes_kinds
from herder.engine.meta.kinds import Object


def driver(*, active: bool = True, name: str = "linode") -> Object:
    return {"metadata": {"name": "nd-1"}, "spec": {"active": active, "displayName": name}}


LEFT = ["LinodeMachine default/b", "LinodeConfig default/a"]
TOLD = (
    "2 objects of its kinds still exist (LinodeConfig default/a, LinodeMachine default/b); "
    "delete them first, or leave driver linode active"
)


INVALID = 'NodeDriver.management.cattle.io "nd-1" is invalid:'
FORBIDDEN = 'nodedrivers.management.cattle.io "nd-1" is forbidden:'


@pytest.mark.parametrize(
    ("old", "new", "refusal"),
    [
        (driver(), driver(active=False), f"{INVALID} spec.active: Forbidden: cannot be deactivated: {TOLD}"),
        (driver(), None, f"{FORBIDDEN} cannot be deleted: {TOLD}"),
        (driver(active=False), None, f"{FORBIDDEN} cannot be deleted: {TOLD}"),
        (
            driver(),
            driver(name="other"),
            f"{INVALID} spec.displayName: Forbidden: cannot become driver other: {TOLD}",
        ),
        (driver(), driver(), None),
        (driver(active=False), driver(active=False), None),
        (driver(active=False), driver(), None),
    ],
)
def test_what_would_take_the_kinds_away_is_refused(old: Object, new: Object | None, refusal: str | None) -> None:
    error = refuse_deactivation(old, new, LEFT)
    assert (str(error) if error else None) == refusal
    assert refuse_deactivation(old, new, []) is None
    assert removes_kinds(old, new) == bool(refusal)


def test_of_many_objects_some_are_named_and_all_are_counted() -> None:
    error = refuse_deactivation(driver(), None, [f"LinodeMachine default/{number}" for number in range(9)])
    told = str(error)
    assert "9 objects of its kinds still exist (LinodeMachine default/0, " in told
    assert "LinodeMachine default/4 and 4 more)" in told
