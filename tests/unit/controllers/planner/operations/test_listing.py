"""Reports of servers become ETCDSnapshots; what a node writes is limited."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from herder.api.rke.node.plan_secret import encoded, zipped
from herder.api.rke.operations import SAVE_SNAPSHOT
from herder.controllers.planner.operations.listing import MAX_SNAPSHOTS, Reported, reported_by
from herder.controllers.planner.rollout.machines import PlanEntry
from tests.unit.controllers.planner.objects import SERVER, entry

K3S = {
    "kind": "List",
    "items": [
        {
            "spec": {"location": "file:///snapshots/a", "nodeName": "s1", "snapshotName": "a", "metadata": {"k": "v"}},
            "status": {"creationTime": "2026-11-16T07:25:41Z", "readyToUse": True, "size": "1114144"},
        },
        {
            "spec": {"location": "", "snapshotName": "b"},
            "status": {"readyToUse": False, "size": "0", "error": {"message": "no space left on device"}},
        },
    ],
}


def reporting(output: bytes) -> PlanEntry:
    found = entry("a", SERVER)
    data = {**(found.plan.secret.get("data") or {}), "applied-output": encoded(zipped({SAVE_SNAPSHOT: output}))}
    return PlanEntry(found.machine, type(found.plan)({**found.plan.secret, "data": data}))


def test_the_list_of_k3s_is_read() -> None:
    assert reported_by(reporting(msgspec.json.encode(K3S))) == [
        Reported("a", "file:///snapshots/a", "2026-11-16T07:25:41Z", 1114144, "", "", {"k": "v"}),
        Reported("b", "", "", 0, "failed", "no space left on device", {}),
    ]


def test_the_list_of_the_snapshot_program_is_read() -> None:
    report = {
        "snapshots": [{"name": "a", "location": "s3://bucket/a", "size": 3, "status": "successful", "sha256": ""}]
    }
    (found,) = reported_by(reporting(msgspec.json.encode(report))) or ()
    assert (found.name, found.in_s3, found.size) == ("a", True, 3)


MANY_FILES = b'{"items":[' + b",".join([b"{}"] * 100_000) + b"]}"
MANY_LABELS = (
    b'{"snapshots":[{"name":"a","metadata":{' + b",".join(b'"%d":""' % each for each in range(50_000)) + b"}}]}"
)


@pytest.mark.parametrize("output", [MANY_FILES, MANY_LABELS])
def test_a_report_with_many_values_is_not_decoded(output: bytes) -> None:
    """Decoding takes as long as there are values, on the event loop. Compressed, such a report has a few KiB."""
    msgspec.json.decode(output)
    assert reported_by(reporting(output)) is None


@pytest.mark.parametrize("output", [b"", b"Snapshot saved", b"[" * 100_000, b'{"snapshots": 3}', b"\xff"])
def test_other_reports_are_ignored(output: bytes) -> None:
    assert reported_by(reporting(output)) is None


def test_reports_are_limited() -> None:
    many: dict[str, Any] = {"snapshots": [{"name": f"s-{number}"} for number in range(MAX_SNAPSHOTS + 50)]}
    hostile = {"snapshots": [{"name": name} for name in ("../etc", "a b", "-x", "", "a" * 300, "good")]}
    assert len(reported_by(reporting(msgspec.json.encode(many))) or ()) == MAX_SNAPSHOTS
    assert [each.name for each in reported_by(reporting(msgspec.json.encode(hostile))) or ()] == ["good"]
