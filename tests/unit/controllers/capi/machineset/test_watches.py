"""Watches of the MachineSet and MachineDeployment controllers: which changes trigger a reconcile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from herder.api.capi.kinds import CLUSTER, DEFINITION, MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.api.writes import owner_reference
from herder.controllers.capi.machinedeployment.controller import CONTROLLER as MACHINE_DEPLOYMENTS
from herder.controllers.capi.machineset.controller import CONTROLLER as MACHINE_SETS
from herder.engine.control.cache import Cache, Change, Key, key_of
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from tests.support.builders import new_definition
from tests.unit.controllers.capi.machinedeployment.objects import deployment
from tests.unit.controllers.capi.machineset.objects import machine, ready_set
from tests.unit.controllers.capi.objects import (
    BOOTSTRAP_TEMPLATE,
    CONTROL_PLANE,
    INFRA,
    INFRA_TEMPLATE,
    cluster,
    provider_object,
)

OWNED_BY_CLUSTER: dict[str, Any] = {
    "owners": [{"kind": "Cluster", "name": "herd"}],
    "labels": {"cluster.x-k8s.io/cluster-name": "herd"},
}
OWNED_SET = ready_set()
OWNED_SET["metadata"]["ownerReferences"] = [owner_reference(MACHINE_DEPLOYMENT, deployment(), controller=True)]


def _triggered(
    controller: Controller, reconciled: Object, kind: Kind, old: Object | None, new: Object | None
) -> list[str]:
    cache = Cache(controller.kind, controller.indexers(controller.kind))
    cache.upsert({**reconciled, "metadata": {**reconciled["metadata"], "resourceVersion": "1"}})

    def lookup(index: tuple[str, str]) -> Iterable[Key]:
        return [key_of(obj) for obj in cache.select(index=index)]

    changed = new or old
    assert changed is not None
    change = Change(key_of(changed), old, new)
    watches = [watch for watch in controller.kinds() if watch.kind == kind]
    if watches:
        return [str(key) for watch in watches for key in watch.affected(change, lookup)]
    assert controller.dynamic_watches is not None
    return [str(key) for key in controller.dynamic_watches.affected(kind, change, lookup)]


def _replaced(obj: Object, **parts: Any) -> Object:
    return {**obj, **parts}


@pytest.mark.parametrize(
    ("controller", "reconciled", "name"),
    [(MACHINE_SETS, OWNED_SET, "set"), (MACHINE_DEPLOYMENTS, deployment(), "pool")],
)
@pytest.mark.parametrize(
    ("kind", "old", "new", "expected"),
    [
        (CLUSTER, cluster(), cluster(paused=True), True),
        (CLUSTER, cluster(), _replaced(cluster(), status={"phase": "Provisioned"}), False),
        (INFRA_TEMPLATE, None, provider_object(INFRA_TEMPLATE, "infra"), True),
        (INFRA_TEMPLATE, None, provider_object(INFRA_TEMPLATE, "another"), False),
        (BOOTSTRAP_TEMPLATE, provider_object(BOOTSTRAP_TEMPLATE, "boot"), None, True),
        (
            BOOTSTRAP_TEMPLATE,
            provider_object(BOOTSTRAP_TEMPLATE, "boot"),
            provider_object(BOOTSTRAP_TEMPLATE, "boot", spec={"x": 1}),
            False,
        ),
        (DEFINITION, None, new_definition(INFRA_TEMPLATE), True),
        (DEFINITION, None, new_definition(CONTROL_PLANE), False),
        (
            CONTROL_PLANE,
            provider_object(CONTROL_PLANE, "control", **OWNED_BY_CLUSTER),
            provider_object(CONTROL_PLANE, "control", spec={"version": "v2"}, **OWNED_BY_CLUSTER),
            True,
        ),
        (
            CONTROL_PLANE,
            provider_object(CONTROL_PLANE, "control", **OWNED_BY_CLUSTER),
            provider_object(CONTROL_PLANE, "control", spec={"replicas": 2}, **OWNED_BY_CLUSTER),
            False,
        ),
        (INFRA, None, provider_object(INFRA, "machine"), False),
    ],
)
def test_changes_of_referenced_objects(
    controller: Controller,
    reconciled: Object,
    name: str,
    kind: Kind,
    old: Object | None,
    new: Object | None,
    expected: bool,
) -> None:
    assert _triggered(controller, reconciled, kind, old, new) == ([f"default/{name}"] if expected else [])


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, machine("m"), True),
        (machine("m"), machine("m", Ready="True"), True),
        (machine("m"), machine("m", deleting=True), True),
        (machine("m"), None, True),
        (machine("m"), _replaced(machine("m"), status={**machine("m")["status"], "phase": "Running"}), False),
        (None, machine("m", owner=""), False),
    ],
)
def test_machine_changes_that_affect_the_status_trigger_its_set(
    old: Object | None, new: Object | None, expected: bool
) -> None:
    assert _triggered(MACHINE_SETS, OWNED_SET, MACHINE, old, new) == (["default/set"] if expected else [])


def test_orphan_triggers_the_set_named_in_its_label() -> None:
    orphan = machine("m", owner="")
    orphan["metadata"]["labels"] = {"cluster.x-k8s.io/set-name": "set"}
    assert _triggered(MACHINE_SETS, OWNED_SET, MACHINE, None, orphan) == ["default/set"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({}, {"OwnerRemediated": "False/WaitingForRemediation"}, True),
        ({"OwnerRemediated": "False/WaitingForRemediation"}, {"OwnerRemediated": "False/MachineDeleting"}, True),
        ({"OwnerRemediated": "False/MachineDeleting"}, None, True),
        ({}, {"Ready": "True"}, False),
        ({}, None, False),
    ],
)
def test_machine_to_be_remediated_triggers_all_sets_of_its_deployment(
    old: dict[str, str], new: dict[str, str] | None, expected: bool
) -> None:
    def of_another_set(conditions: dict[str, str]) -> Object:
        obj = machine("m", owner="another-uid", **conditions)
        owner = {**obj["metadata"]["ownerReferences"][0], "name": "another"}
        labels = {"cluster.x-k8s.io/deployment-name": "pool"}
        return _replaced(obj, metadata={**obj["metadata"], "ownerReferences": [owner], "labels": labels})

    set_object = _replaced(
        OWNED_SET, metadata={**OWNED_SET["metadata"], "labels": {"cluster.x-k8s.io/deployment-name": "pool"}}
    )
    triggered = _triggered(
        MACHINE_SETS, set_object, MACHINE, of_another_set(old), of_another_set(new) if new is not None else None
    )
    assert ("default/set" in triggered) is expected


def test_deployment_spec_changes_trigger_its_sets() -> None:
    before = deployment()
    after = _replaced(before, spec={**before["spec"], "remediation": {"maxInFlight": 1}})
    assert _triggered(MACHINE_SETS, OWNED_SET, MACHINE_DEPLOYMENT, before, after) == ["default/set"]
    assert (
        _triggered(MACHINE_SETS, OWNED_SET, MACHINE_DEPLOYMENT, before, _replaced(before, status={"replicas": 1})) == []
    )


def test_set_status_changes_trigger_its_deployment() -> None:
    set_with_status = _replaced(OWNED_SET, status={"replicas": 1})
    assert _triggered(MACHINE_DEPLOYMENTS, deployment(), MACHINE_SET, OWNED_SET, set_with_status) == ["default/pool"]
