"""Watches of the Machine controller: which changes trigger a reconcile of which Machines."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import CLUSTER, DEFINITION, MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.controllers.capi.machine.controller import CONTROLLER
from herder.engine.control.cache import Cache, Change, Key, key_of
from herder.engine.meta.kinds import Kind, Object
from tests.support.builders import new_definition
from tests.unit.controllers.capi.machine.harness import running
from tests.unit.controllers.capi.machine.objects import (
    INFRA,
    TWO_HOURS_AGO,
    cluster,
    deployment,
    infra,
    machine,
    machine_set,
)


def machine_cache() -> Cache:
    """A cache with Machine ewe, and a Machine of another Cluster, MachineSet, MachineDeployment and provider."""
    cache = Cache(MACHINE, CONTROLLER.indexers(MACHINE))
    labels = {"cluster.x-k8s.io/deployment-name": "flock"}
    cache.upsert(machine(metadata={"resourceVersion": "1", "labels": labels}))
    other = {"name": "ram", "resourceVersion": "1", "ownerReferences": [], "labels": {}}
    reference = {"apiGroup": "elsewhere.example", "kind": "Stall", "name": "ewe"}
    cache.upsert(
        machine(spec={"clusterName": "south", "infrastructureRef": reference, "bootstrap": {}}, metadata=other)
    )
    return cache


def triggered(kind: Kind, before: Object | None, after: Object | None) -> list[str]:
    change = Change(key_of((after or before) or {}), before, after)
    watches = [watch for watch in CONTROLLER.kinds() if watch.kind == kind]
    keys = [key for watch in watches for key in watch.affected(change, machine_cache().indexed)]
    if not watches:
        assert CONTROLLER.dynamic_watches is not None
        keys = CONTROLLER.dynamic_watches.affected(kind, change, machine_cache().indexed)
    assert all(key.namespace == "farm" for key in keys)
    return [key.name for key in keys]


def changed(obj: Object, part: str, value: Any) -> Object:
    first, _, rest = part.partition(".")
    return {**obj, first: changed(obj.get(first) or {}, rest, value) if rest else value}


TRIGGERED = ["ewe"]


@pytest.mark.parametrize(
    ("part", "value", "expected"),
    [
        ("spec.paused", True, TRIGGERED),
        ("spec.controlPlaneRef", {"kind": "K", "name": "n"}, TRIGGERED),
        ("spec.clusterNetwork", {"services": {}}, []),
        ("metadata.deletionTimestamp", TWO_HOURS_AGO, TRIGGERED),
        ("metadata.labels", {"a": "b"}, []),
        ("status.initialization.infrastructureProvisioned", False, TRIGGERED),
        ("status.conditions", [], TRIGGERED),  # its control plane is no longer initialized
        ("status.workers", {"replicas": 5000}, []),
        ("status.phase", "Provisioned", []),
    ],
)
def test_cluster_changes(part: str, value: Any, expected: list[str]) -> None:
    assert triggered(CLUSTER, cluster(), changed(cluster(), part, value)) == expected


def test_new_cluster_triggers_its_machines() -> None:
    assert triggered(CLUSTER, None, cluster()) == TRIGGERED


@pytest.mark.parametrize(
    ("part", "value", "expected"),
    [
        ("spec.template.spec.version", "v1.36.0", TRIGGERED),
        ("spec.template.spec.infrastructureRef", {"name": "b"}, TRIGGERED),
        ("spec.template.spec.minReadySeconds", 5, []),
        ("spec.template.metadata", {"labels": {"a": "b"}}, []),
        ("spec.replicas", 7, []),
        ("status.readyReplicas", 7, []),
        ("metadata.annotations", {"machinedeployment.clusters.x-k8s.io/revision": "2"}, TRIGGERED),
    ],
)
@pytest.mark.parametrize(("kind", "obj"), [(MACHINE_SET, machine_set()), (MACHINE_DEPLOYMENT, deployment())])
def test_machine_set_and_deployment_changes(
    kind: Kind, obj: Object, part: str, value: Any, expected: list[str]
) -> None:
    assert triggered(kind, obj, changed(obj, part, value)) == expected


def test_rollout_after_of_a_deployment() -> None:
    assert triggered(MACHINE_DEPLOYMENT, deployment(), deployment(rollout={"after": TWO_HOURS_AGO})) == TRIGGERED


@pytest.mark.parametrize(
    ("part", "value", "expected"),
    [
        ("status.initialization", {"provisioned": True}, TRIGGERED),
        ("spec.providerID", "paddock://ewe", TRIGGERED),
        ("metadata.deletionTimestamp", TWO_HOURS_AGO, TRIGGERED),
        ("metadata.finalizers", ["a"], []),
        ("metadata.managedFields", [{}], []),
    ],
)
def test_infrastructure_changes(part: str, value: Any, expected: list[str]) -> None:
    assert triggered(INFRA, infra(), changed(infra(), part, value)) == expected


def test_unowned_infrastructure_triggers_the_machine_that_references_it() -> None:
    assert triggered(INFRA, None, infra(metadata={"ownerReferences": []})) == TRIGGERED
    assert triggered(INFRA, infra(), None) == TRIGGERED


def test_new_definition_triggers_machines_that_reference_its_kind() -> None:
    partial = {**new_definition(INFRA, "v1beta2"), "metadata": {**new_definition(INFRA, "v1beta2")["metadata"]}}
    assert triggered(DEFINITION, None, partial) == TRIGGERED


@pytest.mark.parametrize(
    ("part", "value", "expected"),
    [
        ("spec.version", "v1.36.0", TRIGGERED),
        ("metadata.annotations", {"cluster.x-k8s.io/paused": ""}, TRIGGERED),
        ("metadata.resourceVersion", "2", []),
        ("status.phase", "Running", []),
        ("status.conditions", [{"type": "Ready", "status": "True"}], []),
        ("status.conditions", [{"type": "HealthCheckSucceeded", "status": "False"}], TRIGGERED),
        ("status.conditions", [{"type": "AnybodysGate", "status": "True"}], TRIGGERED),
        ("status.deprecated.v1beta1.conditions", [{"type": "OwnerRemediated", "status": "False"}], TRIGGERED),
        ("status.deprecated.v1beta1.conditions", [{"type": "BootstrapReady", "status": "True"}], []),
        ("status.deletion", {"nodeDrainStartTime": TWO_HOURS_AGO}, TRIGGERED),
    ],
)
def test_machine_changes(part: str, value: Any, expected: list[str]) -> None:
    assert triggered(MACHINE, machine(), changed(machine(), part, value)) == expected


def test_machines_are_grouped_by_cluster() -> None:
    assert CONTROLLER.cluster_of is not None
    assert CONTROLLER.cluster_of(running().machine) == "farm/north"
    assert machine_cache().indexed(("machine.cluster", "farm/south")) == [Key("farm", "ram")]
