"""How many there are, in the control plane and among the workers."""

from __future__ import annotations

import pytest

from herder.api.capi.names import CLUSTER_NAME, POOL_NAME
from herder.engine.meta.kinds import Object
from tests.unit.controllers.capi.cluster.herd import (
    DEFINITIONS,
    INFRA,
    OWNER,
    PLANE,
    cluster,
    definition,
    good,
    machine,
    machine_set,
    plane,
    pool,
    status_after,
)

COUNTED = {"replicas": 3, "readyReplicas": 2, "availableReplicas": 1, "upToDateReplicas": 3}


@pytest.mark.parametrize(
    ("definitions", "status"),
    [
        pytest.param(DEFINITIONS, COUNTED, id="v1beta2"),
        pytest.param(
            (definition(INFRA), definition(PLANE, "v1beta1")),
            {"replicas": 3, "readyReplicas": 2, "unavailableReplicas": 2, "updatedReplicas": 3},
            id="v1beta1",
        ),
    ],
)
def test_a_control_plane_object_counts_for_itself(definitions: tuple[Object, ...], status: Object) -> None:
    after = status_after(cluster(), *definitions, plane(status, replicas=3), good("cp", control_plane=True))
    assert after["controlPlane"] == COUNTED | {"desiredReplicas": 3}


def test_a_control_plane_without_replicas_has_no_counters() -> None:
    assert "controlPlane" not in status_after(cluster(), *DEFINITIONS, plane())
    stale = cluster(status={"controlPlane": COUNTED})
    assert "controlPlane" not in status_after(stale, *DEFINITIONS)


def test_control_plane_machines_are_counted_where_no_object_does() -> None:
    machines = [
        good("cp-1", control_plane=True, nodeInfo={"kubeletVersion": "v1.31.0"}),
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


def test_workers_are_the_sum_of_deployments_standalone_sets_and_standalone_machines() -> None:
    workers = [
        pool("d", wanted=5, **COUNTED),
        pool("new", wanted=1),
        machine_set("of-d", owned=False, wanted=5, **COUNTED),
        machine_set("alone", wanted=2, **COUNTED),
        good("of-set"),
        good("alone-1", owned=True),
        machine("alone-2", owned=True),
        good("cp", owned=True, control_plane=True),
    ]
    assert status_after(cluster(), *DEFINITIONS, *workers)["workers"] == {
        "desiredReplicas": 5 + 1 + 2 + 2,
        "replicas": 3 + 3 + 2,
        "readyReplicas": 2 + 2 + 1,
        "availableReplicas": 1 + 1 + 1,
        "upToDateReplicas": 3 + 3 + 1,
    }


def test_machines_of_pools_are_not_counted() -> None:
    labels = {"labels": {CLUSTER_NAME: "c", POOL_NAME: "p"}, "ownerReferences": [OWNER]}
    assert "workers" not in status_after(cluster(), *DEFINITIONS, good("w", meta=labels))


def test_versions_are_added_up_with_the_oldest_first() -> None:
    pools = [
        pool("a", versions=[{"version": "v1.9.0", "replicas": 1}, {"version": "v1.10.0+k3s2", "replicas": 2}]),
        pool("b", versions=[{"version": "v1.10.0+k3s1", "replicas": 1}, {"version": "v1.9.0", "replicas": 3}]),
    ]
    assert status_after(cluster(), *DEFINITIONS, *pools)["workers"]["versions"] == [
        {"version": "v1.9.0", "replicas": 4},
        {"version": "v1.10.0+k3s1", "replicas": 1},
        {"version": "v1.10.0+k3s2", "replicas": 2},
    ]
