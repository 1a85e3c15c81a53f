"""What the manager records about the specs of a cluster, for restores."""

from __future__ import annotations

import base64
import gzip
import json
import time
from typing import Any

import pytest

from herder.api.references.approvals import APPROVED
from herder.api.rke.etcd.restore import MAX_APPROVED, SPEC_KEY, extended_approvals, saved_version
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


def snapshot(content: bytes) -> Object:
    encoded = base64.b64encode(gzip.compress(content)).decode()
    metadata = base64.b64encode(json.dumps({SPEC_KEY: encoded}).encode()).decode()
    return {"metadata": {"name": "saved"}, "snapshotFile": {"metadata": metadata}}


@pytest.mark.parametrize(
    ("spec", "version"),
    [
        ({"kubernetesVersion": "v1.34.1+k3s1", "rkeConfig": {}}, "v1.34.1+k3s1"),
        ({"kubernetesVersion": 1}, ""),
        ({"kubernetesVersion": None}, ""),
        ({"rkeConfig": {}}, ""),
        ([], ""),
    ],
)
def test_the_version_of_a_snapshot_is_read_from_its_copy_of_the_spec(spec: Any, version: str) -> None:
    assert saved_version(snapshot(json.dumps(spec).encode())) == version


@pytest.mark.parametrize("value", [b"[],", b"{},", b"0,"], ids=["lists", "objects", "numbers"])
def test_a_copy_that_unpacks_to_millions_of_values_does_not_block_the_event_loop(value: bytes) -> None:
    """Servers report the copy, and a request for a restore of the data reads the version in it."""
    bomb = snapshot(b'{"rkeConfig":[' + value * ((4 << 20) // len(value) - 100) + b'0],"kubernetesVersion":"v1"}')
    started = time.process_time()
    assert saved_version(bomb) == "v1"
    assert time.process_time() - started < 0.05


def test_a_copy_that_is_nested_too_deep_has_no_version() -> None:
    assert saved_version(snapshot(b'{"a":' + b"[" * 1_000_000)) == ""
