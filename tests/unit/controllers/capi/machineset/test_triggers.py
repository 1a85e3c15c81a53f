"""What wakes a MachineSet or a MachineDeployment, and what lets it sleep."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from herder.api.capi.kinds import CLUSTER, DEFINITION, MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.api.writes import owner_reference
from herder.controllers.capi.machinedeployment.controller import CONTROLLER as DEPLOYMENTS
from herder.controllers.capi.machineset.controller import CONTROLLER as SETS
from herder.engine.control.cache import Cache, Change, Key, key_of
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from tests.unit.controllers.capi.machinedeployment.deployments import deployment
from tests.unit.controllers.capi.machineset.sets import machine, ready_set
from tests.unit.controllers.capi.world import BOOT_TEMPLATE, CONTROL, INFRA, INFRA_TEMPLATE, cluster, definition, made

OWNED: dict[str, Any] = {
    "ownerReferences": [{"kind": "Cluster", "name": "herd"}],
    "labels": {"cluster.x-k8s.io/cluster-name": "herd"},
}
CHILD = ready_set()
CHILD["metadata"]["ownerReferences"] = [owner_reference(MACHINE_DEPLOYMENT, deployment(), controller=True)]


def _woken(controller: Controller, own: Object, kind: Kind, old: Object | None, new: Object | None) -> list[str]:
    cache = Cache(controller.kind, controller.indexers(controller.kind))
    cache.upsert({**own, "metadata": {**own["metadata"], "resourceVersion": "1"}})

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


def _with(obj: Object, **parts: Any) -> Object:
    return {**obj, **parts}


@pytest.mark.parametrize(("controller", "own", "name"), [(SETS, CHILD, "set"), (DEPLOYMENTS, deployment(), "pool")])
@pytest.mark.parametrize(
    ("kind", "old", "new", "wakes"),
    [
        (CLUSTER, cluster(), cluster(paused=True), True),
        (CLUSTER, cluster(), _with(cluster(), status={"phase": "Provisioned"}), False),
        (INFRA_TEMPLATE, None, made(INFRA_TEMPLATE, "infra"), True),
        (INFRA_TEMPLATE, None, made(INFRA_TEMPLATE, "another"), False),
        (BOOT_TEMPLATE, made(BOOT_TEMPLATE, "boot"), None, True),
        (BOOT_TEMPLATE, made(BOOT_TEMPLATE, "boot"), made(BOOT_TEMPLATE, "boot", spec={"x": 1}), False),
        (DEFINITION, None, definition(INFRA_TEMPLATE), True),
        (DEFINITION, None, definition(CONTROL), False),
        (CONTROL, made(CONTROL, "control", **OWNED), made(CONTROL, "control", spec={"version": "v2"}, **OWNED), True),
        (CONTROL, made(CONTROL, "control", **OWNED), made(CONTROL, "control", spec={"replicas": 2}, **OWNED), False),
        (INFRA, None, made(INFRA, "machine"), False),
    ],
)
def test_news_from_elsewhere(
    controller: Controller, own: Object, name: str, kind: Kind, old: Object | None, new: Object | None, wakes: bool
) -> None:
    assert _woken(controller, own, kind, old, new) == ([f"default/{name}"] if wakes else [])


@pytest.mark.parametrize(
    ("old", "new", "wakes"),
    [
        (None, machine("m"), True),
        (machine("m"), machine("m", Ready="True"), True),
        (machine("m"), machine("m", deleting=True), True),
        (machine("m"), None, True),
        (machine("m"), _with(machine("m"), status={**machine("m")["status"], "phase": "Running"}), False),
        (None, machine("m", owner=""), False),
    ],
)
def test_a_machine_wakes_its_set_by_what_the_set_tells(old: Object | None, new: Object | None, wakes: bool) -> None:
    assert _woken(SETS, CHILD, MACHINE, old, new) == (["default/set"] if wakes else [])


def test_an_orphan_wakes_the_set_whose_name_it_carries() -> None:
    orphan = machine("m", owner="")
    orphan["metadata"]["labels"] = {"cluster.x-k8s.io/set-name": "set"}
    assert _woken(SETS, CHILD, MACHINE, None, orphan) == ["default/set"]


@pytest.mark.parametrize(
    ("old", "new", "wakes"),
    [
        ({}, {"OwnerRemediated": "False/WaitingForRemediation"}, True),
        ({"OwnerRemediated": "False/WaitingForRemediation"}, {"OwnerRemediated": "False/MachineDeleting"}, True),
        ({"OwnerRemediated": "False/MachineDeleting"}, None, True),
        ({}, {"Ready": "True"}, False),
        ({}, None, False),
    ],
)
def test_a_machine_to_be_remediated_wakes_all_sets_of_its_deployment(
    old: dict[str, str], new: dict[str, str] | None, wakes: bool
) -> None:
    def of_another_set(conditions: dict[str, str]) -> Object:
        obj = machine("m", owner="another-uid", **conditions)
        owner = {**obj["metadata"]["ownerReferences"][0], "name": "another"}
        labels = {"cluster.x-k8s.io/deployment-name": "pool"}
        return _with(obj, metadata={**obj["metadata"], "ownerReferences": [owner], "labels": labels})

    child = _with(CHILD, metadata={**CHILD["metadata"], "labels": {"cluster.x-k8s.io/deployment-name": "pool"}})
    woken = _woken(SETS, child, MACHINE, of_another_set(old), of_another_set(new) if new is not None else None)
    assert ("default/set" in woken) is wakes


def test_a_deployments_news_wakes_its_sets_where_it_matters_to_them() -> None:
    before = deployment()
    after = _with(before, spec={**before["spec"], "remediation": {"maxInFlight": 1}})
    assert _woken(SETS, CHILD, MACHINE_DEPLOYMENT, before, after) == ["default/set"]
    assert _woken(SETS, CHILD, MACHINE_DEPLOYMENT, before, _with(before, status={"replicas": 1})) == []


def test_a_sets_news_wakes_its_deployment() -> None:
    told = _with(CHILD, status={"replicas": 1})
    assert _woken(DEPLOYMENTS, deployment(), MACHINE_SET, CHILD, told) == ["default/pool"]
