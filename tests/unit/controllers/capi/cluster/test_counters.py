"""Replica counters of the control plane and the workers in the status of a Cluster."""

from __future__ import annotations

import pytest

from herder.api.capi.names import CLUSTER_NAME, POOL_NAME
from herder.engine.meta.kinds import Object
from tests.support.builders import new_definition
from tests.unit.controllers.capi.cluster.objects import (
    DEFINITIONS,
    INFRA,
    OWNER,
    PLANE,
    cluster,
    healthy_machine,
    machine,
    machine_set,
    plane,
    pool,
    status_after,
)

COUNTERS = {"replicas": 3, "readyReplicas": 2, "availableReplicas": 1, "upToDateReplicas": 3}


@pytest.mark.parametrize(
    ("definitions", "status"),
    [
        pytest.param(DEFINITIONS, COUNTERS, id="v1beta2"),
        pytest.param(
            (new_definition(INFRA), new_definition(PLANE, "v1beta1")),
            {"replicas": 3, "readyReplicas": 2, "unavailableReplicas": 2, "updatedReplicas": 3},
            id="v1beta1",
        ),
    ],
)
def test_control_plane_counters_are_copied_from_its_object(definitions: tuple[Object, ...], status: Object) -> None:
    after = status_after(cluster(), *definitions, plane(status, replicas=3), healthy_machine("cp", control_plane=True))
    assert after["controlPlane"] == COUNTERS | {"desiredReplicas": 3}


def test_control_plane_without_replicas_has_no_counters() -> None:
    assert "controlPlane" not in status_after(cluster(), *DEFINITIONS, plane())
    stale = cluster(status={"controlPlane": COUNTERS})
    assert "controlPlane" not in status_after(stale, *DEFINITIONS)


def test_control_plane_machines_are_counted_without_a_control_plane_object() -> None:
    machines = [
        healthy_machine("cp-1", control_plane=True, nodeInfo={"kubeletVersion": "v1.31.0"}),
        machine("cp-2", control_plane=True),
    ]
    assert status_after(cluster(control_plane=False), *DEFINITIONS, *machines)["controlPlane"] == {
        "desiredReplicas": 2,
        "replicas": 2,
        "readyReplicas": 1,
        "availableReplicas": 1,
        "upToDateReplicas": 1,
        "versions": [{"version": "v1.31.0", "replicas": 1}],
    }


def test_workers_sum_deployments_standalone_sets_and_standalone_machines() -> None:
    workers = [
        pool("d", desired=5, **COUNTERS),
        pool("new", desired=1),
        machine_set("of-d", owned=False, desired=5, **COUNTERS),
        machine_set("alone", desired=2, **COUNTERS),
        healthy_machine("of-set"),
        healthy_machine("alone-1", owned=True),
        machine("alone-2", owned=True),
        healthy_machine("cp", owned=True, control_plane=True),
    ]
    assert status_after(cluster(), *DEFINITIONS, *workers)["workers"] == {
        "desiredReplicas": 5 + 1 + 2 + 2,
        "replicas": 3 + 3 + 2,
        "readyReplicas": 2 + 2 + 1,
        "availableReplicas": 1 + 1 + 1,
        "upToDateReplicas": 3 + 3 + 1,
    }


def test_machines_of_machine_pools_are_not_counted() -> None:
    labels = {"labels": {CLUSTER_NAME: "c", POOL_NAME: "p"}, "ownerReferences": [OWNER]}
    assert "workers" not in status_after(cluster(), *DEFINITIONS, healthy_machine("w", metadata=labels))


def test_versions_are_summed_oldest_first() -> None:
    pools = [
        pool("a", versions=[{"version": "v1.9.0", "replicas": 1}, {"version": "v1.10.0+k3s2", "replicas": 2}]),
        pool("b", versions=[{"version": "v1.10.0+k3s1", "replicas": 1}, {"version": "v1.9.0", "replicas": 3}]),
    ]
    assert status_after(cluster(), *DEFINITIONS, *pools)["workers"]["versions"] == [
        {"version": "v1.9.0", "replicas": 4},
        {"version": "v1.10.0+k3s1", "replicas": 1},
        {"version": "v1.10.0+k3s2", "replicas": 2},
    ]
