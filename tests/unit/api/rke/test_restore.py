"""What the manager records about the specs of a cluster, for restores."""

from __future__ import annotations

import json

from herder.api.references.approvals import APPROVED
from herder.api.rke.restore import MAX_APPROVED, extended_approvals
from herder.engine.meta.kinds import Object


def control_plane(known: list[str], current: list[str]) -> Object:
    record = [{"path": "a", "resource": "secrets", "name": str(each), "uid": uid} for each, uid in enumerate(current)]
    return {"metadata": {"annotations": {APPROVED: json.dumps(record)}}, "status": {"approvedObjects": known}}


def test_approved_objects_are_recorded_once_and_the_oldest_are_forgotten() -> None:
    assert extended_approvals({"metadata": {}}) is None
    assert extended_approvals(control_plane(["a", "b"], ["b", "", "a"])) is None
    assert extended_approvals(control_plane(["a", "b"], ["c", "a"])) == ["b", "c", "a"]
    many = [str(each) for each in range(MAX_APPROVED)]
    assert extended_approvals(control_plane(many, ["new"])) == [*many[1:], "new"]


def test_more_objects_than_are_recorded_are_not_recorded_in_every_pass() -> None:
    current = [str(each) for each in range(MAX_APPROVED + 5)]
    recorded = extended_approvals(control_plane([], current))
    assert recorded == current[5:]
    assert extended_approvals(control_plane(recorded or [], current)) is None
