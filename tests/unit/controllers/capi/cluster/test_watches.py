"""Watches of the Cluster controller: which changes trigger a reconcile, and which objects it does not read."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.conditions import condition
from herder.api.capi.kinds import CLUSTER, DEFINITION, MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.controllers.capi.cluster.controller import CONTROLLER
from herder.controllers.capi.cluster.references import definitions_of, reference_to, references_of
from herder.engine.control.cache import Change, Key, key_of
from herder.engine.meta.kinds import Kind, Object
from tests.support.builders import new_definition
from tests.unit.controllers.capi.cluster.objects import (
    DEFINITIONS,
    INFRA,
    PROVISIONED,
    cluster,
    healthy_machine,
    infra,
    machine,
    machine_set,
    new_view,
    pool,
    reconcile_cluster,
)


def triggered(kind: Kind, old: Object | None, new: Object | None) -> list[Key]:
    clusters = [cluster()]

    def lookup(index: tuple[str, str]) -> list[Key]:
        values_of = CONTROLLER.indexers(CLUSTER)[index[0]]
        return [key_of(obj) for obj in clusters if index[1] in values_of(obj)]

    change = Change(key_of(new or old or {}), old, new)
    if kind == INFRA:
        assert CONTROLLER.dynamic_watches is not None
        return CONTROLLER.dynamic_watches.affected(kind, change, lookup)
    return [key for watch in CONTROLLER.kinds() if watch.kind == kind for key in watch.affected(change, lookup)]


OURS = [Key("ns", "c")]
UNREADY = condition("Ready", "False", "NotReady", "no node")


def changed(obj: Object, **status: Any) -> Object:
    return {**obj, "status": {**obj["status"], **status}}


@pytest.mark.parametrize(
    ("kind", "old", "new", "keys"),
    [
        pytest.param(MACHINE, None, machine("w"), OURS, id="a new Machine"),
        pytest.param(MACHINE, machine("w"), None, OURS, id="a deleted Machine"),
        pytest.param(MACHINE, machine("w"), healthy_machine("w"), OURS, id="a Machine that became ready"),
        pytest.param(
            MACHINE,
            machine("w", UNREADY),
            machine("w", {**UNREADY, "message": "no disk"}),
            OURS,
            id="a Machine with another message",
        ),
        pytest.param(
            MACHINE,
            healthy_machine("w"),
            changed(healthy_machine("w"), phase="Running", addresses=[{}]),
            [],
            id="a Machine's other fields",
        ),
        pytest.param(
            MACHINE,
            healthy_machine("w"),
            changed(healthy_machine("w"), nodeRef={"name": "n"}),
            [],
            id="a worker's node",
        ),
        pytest.param(
            MACHINE,
            healthy_machine("cp", control_plane=True),
            changed(healthy_machine("cp", control_plane=True), nodeRef={"name": "n"}),
            OURS,
            id="a control plane Machine's node",
        ),
        pytest.param(MACHINE, None, machine("w", metadata={"labels": {}}), [], id="a Machine of no cluster"),
        pytest.param(MACHINE_DEPLOYMENT, pool("d"), pool("d", readyReplicas=1), OURS, id="a deployment's counters"),
        pytest.param(MACHINE_DEPLOYMENT, pool("d", owned=False), pool("d"), OURS, id="a deployment that was adopted"),
        pytest.param(
            MACHINE_DEPLOYMENT,
            pool("d"),
            {**pool("d"), "metadata": {**pool("d")["metadata"], "annotations": {"a": "b"}}},
            [],
            id="a deployment's annotations",
        ),
        pytest.param(MACHINE_SET, machine_set("s"), machine_set("s", replicas=1), OURS, id="a standalone set"),
        pytest.param(
            MACHINE_SET,
            machine_set("s", owned=False),
            machine_set("s", owned=False, replicas=1),
            [],
            id="a deployment's set",
        ),
        pytest.param(MACHINE_SET, machine_set("s", owned=False), None, OURS, id="a deployment's deleted set"),
        pytest.param(INFRA, infra(), infra(metadata={"annotations": {"beat": "7"}}), [], id="a provider's heartbeat"),
        pytest.param(
            INFRA, None, infra(metadata={"labels": {}, "ownerReferences": []}), OURS, id="referenced object, unowned"
        ),
        pytest.param(INFRA, infra(), infra(PROVISIONED), OURS, id="referenced object, provisioned"),
        pytest.param(
            INFRA,
            None,
            {**infra(), "metadata": {"name": "other", "namespace": "ns"}},
            [],
            id="another of the same kind",
        ),
        pytest.param(DEFINITION, None, new_definition(INFRA), OURS, id="the definition of a referenced kind"),
        pytest.param(
            DEFINITION, new_definition(INFRA, "v1beta1"), new_definition(INFRA), OURS, id="its contract changed"
        ),
    ],
)
def test_changes_of_related_objects_trigger_a_reconcile(
    kind: Kind, old: Object | None, new: Object | None, keys: list[Key]
) -> None:
    assert triggered(kind, old, new) == keys


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("metadata.annotations", {"cluster.x-k8s.io/paused": ""}, True),
        ("metadata.deletionTimestamp", "2026-01-01T11:00:00Z", True),
        ("metadata.resourceVersion", "99", False),
        ("spec.paused", True, True),
        ("status.conditions", [condition("ControlPlaneInitialized", "False", "Restoring")], True),
        ("status.workers", {"replicas": 3}, False),
    ],
)
def test_changes_of_the_cluster_trigger_a_reconcile(field: str, value: Any, expected: bool) -> None:
    section, name = field.split(".")
    old = cluster()
    new = {**old, section: {**old[section], name: value}}
    assert (triggered(CLUSTER, old, new) == OURS) is expected


def test_references_are_indexed_by_their_target() -> None:
    assert set(reference_to(infra())) <= set(references_of(cluster()))
    assert new_definition(INFRA)["metadata"]["name"] in list(definitions_of(cluster()))
    assert list(references_of({"metadata": {"name": "c"}, "spec": {"infrastructureRef": {"kind": "Half"}}})) == []


def test_healthy_machines_are_counted_without_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = [healthy_machine(f"w-{number:03}") for number in range(200)]
    view = new_view(cluster(), *DEFINITIONS, *machines, machine("w-200", UNREADY))
    read: list[str] = []
    select = type(view).select

    def counting_select(self: Any, kind: Kind, **options: Any) -> list[Object]:
        found = select(self, kind, **options)
        if kind == MACHINE:
            read.extend(obj["metadata"]["name"] for obj in found)
        return found

    monkeypatch.setattr(type(view), "select", counting_select)
    CONTROLLER.reconcile(view)
    assert set(read) == {"w-200"}


def test_decision_does_not_depend_on_the_number_of_healthy_machines() -> None:
    few = reconcile_cluster(cluster(), *DEFINITIONS, *[healthy_machine(f"w-{number}") for number in range(3)])
    many = reconcile_cluster(cluster(), *DEFINITIONS, *[healthy_machine(f"w-{number}") for number in range(300)])
    assert few == many
