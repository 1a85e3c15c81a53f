"""Which changes wake which Machines: all that matter, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import CLUSTER, DEFINITION, MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.controllers.capi.machine.controller import CONTROLLER
from herder.engine.control.cache import Cache, Change, Key, key_of
from herder.engine.meta.kinds import Kind, Object
from tests.unit.controllers.capi.machine.stage import (
    INFRA,
    LONG_AGO,
    cluster,
    definition,
    deployment,
    infra,
    machine,
    machine_set,
    running,
)


def herd() -> Cache:
    """Our Machine, and one of another cluster, set, deployment and provider."""
    cache = Cache(MACHINE, CONTROLLER.indexers(MACHINE))
    labels = {"cluster.x-k8s.io/deployment-name": "flock"}
    cache.upsert(machine(metadata={"resourceVersion": "1", "labels": labels}))
    other = {"name": "ram", "resourceVersion": "1", "ownerReferences": [], "labels": {}}
    reference = {"apiGroup": "elsewhere.example", "kind": "Stall", "name": "ewe"}
    cache.upsert(
        machine(spec={"clusterName": "south", "infrastructureRef": reference, "bootstrap": {}}, metadata=other)
    )
    return cache


def woken(kind: Kind, before: Object | None, after: Object | None) -> list[str]:
    change = Change(key_of((after or before) or {}), before, after)
    watching = [watch for watch in CONTROLLER.kinds() if watch.kind == kind]
    keys = [key for watch in watching for key in watch.affected(change, herd().indexed)]
    if not watching:
        assert CONTROLLER.dynamic_watches is not None
        keys = CONTROLLER.dynamic_watches.affected(kind, change, herd().indexed)
    assert all(key.namespace == "farm" for key in keys)
    return [key.name for key in keys]


def changed(obj: Object, part: str, value: Any) -> Object:
    first, _, rest = part.partition(".")
    return {**obj, first: changed(obj.get(first) or {}, rest, value) if rest else value}


EWE = ["ewe"]


@pytest.mark.parametrize(
    ("part", "value", "wakes"),
    [
        ("spec.paused", True, EWE),
        ("spec.controlPlaneRef", {"kind": "K", "name": "n"}, EWE),
        ("spec.clusterNetwork", {"services": {}}, []),
        ("metadata.deletionTimestamp", LONG_AGO, EWE),
        ("metadata.labels", {"a": "b"}, []),
        ("status.initialization.infrastructureProvisioned", False, EWE),
        ("status.conditions", [], EWE),  # its control plane is not initialized any more
        ("status.workers", {"replicas": 5000}, []),
        ("status.phase", "Provisioned", []),
    ],
)
def test_a_clusters_change(part: str, value: Any, wakes: list[str]) -> None:
    assert woken(CLUSTER, cluster(), changed(cluster(), part, value)) == wakes


def test_a_cluster_that_comes_wakes_the_machines_that_waited_for_it() -> None:
    assert woken(CLUSTER, None, cluster()) == EWE


@pytest.mark.parametrize(
    ("part", "value", "wakes"),
    [
        ("spec.template.spec.version", "v1.36.0", EWE),
        ("spec.template.spec.infrastructureRef", {"name": "b"}, EWE),
        ("spec.template.spec.minReadySeconds", 5, []),
        ("spec.template.metadata", {"labels": {"a": "b"}}, []),
        ("spec.replicas", 7, []),
        ("status.readyReplicas", 7, []),
        ("metadata.annotations", {"machinedeployment.clusters.x-k8s.io/revision": "2"}, EWE),
    ],
)
@pytest.mark.parametrize(("kind", "obj"), [(MACHINE_SET, machine_set()), (MACHINE_DEPLOYMENT, deployment())])
def test_a_sets_or_deployments_change(kind: Kind, obj: Object, part: str, value: Any, wakes: list[str]) -> None:
    assert woken(kind, obj, changed(obj, part, value)) == wakes


def test_a_restart_of_a_deployment() -> None:
    assert woken(MACHINE_DEPLOYMENT, deployment(), deployment(rollout={"after": LONG_AGO})) == EWE


@pytest.mark.parametrize(
    ("part", "value", "wakes"),
    [
        ("status.initialization", {"provisioned": True}, EWE),
        ("spec.providerID", "paddock://ewe", EWE),
        ("metadata.deletionTimestamp", LONG_AGO, EWE),
        ("metadata.finalizers", ["a"], []),
        ("metadata.managedFields", [{}], []),
    ],
)
def test_a_change_of_its_infrastructure(part: str, value: Any, wakes: list[str]) -> None:
    assert woken(INFRA, infra(), changed(infra(), part, value)) == wakes


def test_infrastructure_that_nobody_owns_yet_wakes_the_machine_that_names_it() -> None:
    assert woken(INFRA, None, infra(metadata={"ownerReferences": []})) == EWE
    assert woken(INFRA, infra(), None) == EWE


def test_a_definition_that_comes_wakes_the_machines_whose_kind_it_defines() -> None:
    partial = {**definition(INFRA, "v1beta2"), "metadata": {**definition(INFRA, "v1beta2")["metadata"]}}
    assert woken(DEFINITION, None, partial) == EWE


@pytest.mark.parametrize(
    ("part", "value", "wakes"),
    [
        ("spec.version", "v1.36.0", EWE),
        ("metadata.annotations", {"cluster.x-k8s.io/paused": ""}, EWE),
        ("metadata.resourceVersion", "2", []),
        ("status.phase", "Running", []),
        ("status.conditions", [{"type": "Ready", "status": "True"}], []),
        ("status.conditions", [{"type": "HealthCheckSucceeded", "status": "False"}], EWE),
        ("status.conditions", [{"type": "AnybodysGate", "status": "True"}], EWE),
        ("status.deprecated.v1beta1.conditions", [{"type": "OwnerRemediated", "status": "False"}], EWE),
        ("status.deprecated.v1beta1.conditions", [{"type": "BootstrapReady", "status": "True"}], []),
        ("status.deletion", {"nodeDrainStartTime": LONG_AGO}, EWE),
    ],
)
def test_a_machines_own_change(part: str, value: Any, wakes: list[str]) -> None:
    assert woken(MACHINE, machine(), changed(machine(), part, value)) == wakes


def test_turns_are_shared_between_clusters() -> None:
    assert CONTROLLER.cluster_of is not None
    assert CONTROLLER.cluster_of(running().machine) == "farm/north"
    assert herd().indexed(("machine.cluster", "farm/south")) == [Key("farm", "ram")]
