"""When the manager takes the next scheduled snapshot."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import cast

import pytest

from herder.api.capi.conditions import timestamp
from herder.controllers.planner.operations.snapshots.schedule import SCHEDULED_SNAPSHOT, STATUS
from herder.controllers.planner.rollout.scope import PlanScope
from tests.support.views import NOW


@pytest.mark.parametrize(
    ("schedule", "after"),
    [("@every 2m", 120), ("@every 1m", 60), ("@every 1s", 60), ("@every 0s", 60), ("* * * * *", 60)],
)
def test_stored_schedules_start_at_most_one_snapshot_a_minute(schedule: str, after: int) -> None:
    status = {STATUS: {"schedule": schedule, "lastScheduleTime": timestamp(NOW)}}
    scope = SimpleNamespace(
        status=status,
        spec={"etcd": {"snapshotScheduleCron": schedule}},
        distribution=SimpleNamespace(schedules_snapshots=False),
    )
    assert SCHEDULED_SNAPSHOT.due_at(cast(PlanScope, scope)) == NOW + timedelta(seconds=after)
