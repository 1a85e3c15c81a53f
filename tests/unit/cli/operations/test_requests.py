"""Requests of operations and their outcomes, as the status of the control plane shows them."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.rke.fields.table import refused_values
from herder.api.rke.operations import AGENTS, AUTHORITIES, CERTIFICATES, DELETION, ENCRYPTION_KEYS, RESTORE, SNAPSHOT
from herder.cli.operations.requests import (
    Outcome,
    Request,
    is_replaced,
    last_generation,
    operation_data,
    outcome_of,
    pending_requests,
)
from tests.unit.cli.operations.objects import control_plane, provisioning_cluster, run


@pytest.mark.parametrize(
    ("plane", "outcome"),
    [
        (None, None),
        (control_plane(run(SNAPSHOT, "Started", 3)), None),
        (control_plane(run(SNAPSHOT, "Finished", 2)), None),
        (control_plane(run(RESTORE, "Finished", 3)), None),
        (control_plane(run(SNAPSHOT, "Finished", 3)), Outcome(has_failed=False)),
        (control_plane(run(SNAPSHOT, "Failed", 3, message="disk full")), Outcome(True, "disk full")),
        (
            control_plane(
                run(RESTORE, "Started"), etcdSnapshotCreate={"generation": 3}, etcdSnapshotCreatePhase="Finished"
            ),
            Outcome(False, "another operation has run since; see the Events of the cluster"),
        ),
        (
            control_plane(
                run(RESTORE, "Started"), etcdSnapshotCreate={"generation": 3}, etcdSnapshotCreatePhase="Started"
            ),
            None,
        ),
        (
            control_plane(
                run(RESTORE, "Started"), etcdSnapshotCreate={"generation": 2}, etcdSnapshotCreatePhase="Finished"
            ),
            None,
        ),
    ],
)
def test_an_outcome_is_that_of_the_requested_generation(plane: Any, outcome: Outcome | None) -> None:
    assert outcome_of(plane, Request(SNAPSHOT, 3)) == outcome


@pytest.mark.parametrize("kind", [AGENTS, CERTIFICATES])
def test_an_operation_that_has_ended_is_not_pending_while_the_next_one_runs(kind: str) -> None:
    request = {kind: 3} if kind == AGENTS else {"rkeConfig": {kind: {"generation": 3}}}
    ended = run(kind, "Failed", 3, message="no response")
    plane = control_plane(run(RESTORE, "Started"), operationHistory=[ended])
    assert [*pending_requests({"spec": request}, plane)] == []
    assert outcome_of(plane, Request(kind, 3)) == Outcome(True, "no response")


def test_a_redeployment_that_the_history_no_longer_has_is_not_pending() -> None:
    plane = control_plane(run(RESTORE, "Started"), **{AGENTS: 3})
    assert [*pending_requests({"spec": {AGENTS: 3}}, plane)] == []
    assert [*pending_requests({"spec": {AGENTS: 4}}, plane)] == [Request(AGENTS, 4)]


def test_the_outcome_of_a_rotation_outlives_the_next_operation() -> None:
    plane = control_plane(run(SNAPSHOT, "Started"), certificateRotationGeneration=4)
    assert outcome_of(plane, Request(CERTIFICATES, 4)) == Outcome(has_failed=False)
    assert outcome_of(plane, Request(CERTIFICATES, 5)) is None


def test_the_last_generation_is_known_even_if_the_request_was_removed() -> None:
    assert last_generation(provisioning_cluster(), None, SNAPSHOT) == 0
    assert last_generation(provisioning_cluster(etcdSnapshotCreate={"generation": 4}), None, SNAPSHOT) == 4
    plane = control_plane(run(SNAPSHOT, "Failed", 6), etcdSnapshotCreate={"generation": 5})
    assert last_generation(provisioning_cluster(), plane, SNAPSHOT) == 6
    assert last_generation(provisioning_cluster(), plane, RESTORE) == 0
    rotated = control_plane(certificateRotationGeneration=7)
    assert last_generation(provisioning_cluster(rotateCertificates=None), rotated, CERTIFICATES) == 7
    assert last_generation(provisioning_cluster(rotateCertificates=None), rotated, AUTHORITIES) == 7
    both = provisioning_cluster(rotateCertificates={"generation": 8, "caCertificates": True})
    assert [last_generation(both, rotated, kind) for kind in (CERTIFICATES, AUTHORITIES)] == [8, 8]
    assert [each.kind for each in pending_requests(both, rotated)] == [AUTHORITIES]


def test_pending_requests_are_those_that_have_not_started() -> None:
    cluster = provisioning_cluster(etcdSnapshotCreate={"generation": 2}, rotateCertificates={"generation": 1})
    plane = control_plane(run(SNAPSHOT, "Started", 2))
    assert [*pending_requests(cluster, plane)] == [Request(CERTIFICATES, 1)]
    assert [*pending_requests(cluster, None)] == [Request(SNAPSHOT, 2), Request(CERTIFICATES, 1)]


def test_a_request_is_replaced_only_by_another_one_that_the_control_plane_has() -> None:
    request, newer = Request(SNAPSHOT, 2), {SNAPSHOT: {"generation": 3}}
    cluster, plane = provisioning_cluster(9, **newer), control_plane(spec=newer)
    assert is_replaced(cluster, plane, request, written=8)
    assert not is_replaced(cluster, plane, request, written=10), "the Cluster is older than the request"
    assert not is_replaced(cluster, control_plane(spec={}), request, written=8), "the control plane is older"
    started = control_plane(run(SNAPSHOT, "Started", 2), spec=newer)
    assert not is_replaced(cluster, started, request, written=8)


def test_the_fields_that_commands_write_are_accepted_on_k3s() -> None:
    """The server of the tests below has no admission rules of Herder."""
    requests = {
        SNAPSHOT: {"generation": 1},
        RESTORE: {"name": "one", "restoreRKEConfig": "none", "generation": 1},
        CERTIFICATES: {"services": ["kubelet"], "generation": 1},
        ENCRYPTION_KEYS: {"generation": 1},
    }
    cluster = provisioning_cluster(**requests)
    cluster["spec"]["kubernetesVersion"] = "v1.36.3+k3s1"
    assert [*refused_values(cluster)] == []


def test_the_data_of_an_operation_outlives_the_next_one() -> None:
    ended = run(SNAPSHOT, "Finished", 2)
    plane = control_plane(run(DELETION, "Delete", 0), operationHistory=[run(SNAPSHOT, "Failed", 1), ended])
    assert operation_data(plane, Request(SNAPSHOT, 2)) == ended
    assert operation_data(plane, Request(SNAPSHOT, 3)) == {"kind": SNAPSHOT, "generation": 3, "phase": "Pending"}
    assert operation_data(None, Request(SNAPSHOT, 3))["phase"] == "Pending"
