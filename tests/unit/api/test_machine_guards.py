"""Guards of Machines: these actions are denied with a reason, whatever a controller computes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.api.guards import GUARDS
from herder.api.guards.machines import INDEXES
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Apply, Delete, Ref
from herder.engine.runtime.executor import Action
from herder.engine.runtime.handlers import Watches
from tests.support.builders import new_cluster, new_machine, new_object, owner_reference
from tests.support.views import view_of

READER = Controller(
    "reader",
    MACHINE,
    lambda _view: DONE,
    watches=tuple(Watches(kind) for kind in (CLUSTER, MACHINE_DEPLOYMENT, MACHINE_SET)),
    indexes={MACHINE: INDEXES},
)


def deployment(replicas: int = 3, *, surge: int = 1, unavailable: int = 0, deleting: bool = False) -> Object:
    rolling = {"maxSurge": surge, "maxUnavailable": unavailable}
    rollout = {"strategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}
    spec = {"clusterName": "c", "replicas": replicas, "rollout": rollout}
    return new_object(MACHINE_DEPLOYMENT, "md", "ns", deleting=deleting, spec=spec)


def machine_set(name: str = "ms", replicas: int = 3, *, deleting: bool = False) -> Object:
    owner = owner_reference(MACHINE_DEPLOYMENT, "md")
    spec = {"clusterName": "c", "replicas": replicas}
    return new_object(MACHINE_SET, name, "ns", owners=[owner], deleting=deleting, spec=spec)


def machine(
    name: str,
    owner: str = "ms",
    *,
    available: bool = True,
    deleting: bool = False,
    annotations: Any = None,
    cluster: str = "c",
) -> Object:
    conditions = [{"type": "Available", "status": "True" if available else "False"}]
    return new_machine(
        name,
        "ns",
        cluster=cluster,
        owners=[owner_reference(MACHINE_SET, owner)],
        deleting=deleting,
        annotations=annotations,
        status={"conditions": conditions},
    )


def cluster(*, deleting: bool = False, paused: bool = False) -> Object:
    return new_cluster("c", "ns", deleting=deleting, paused=paused)


def creates(name: str, owner: str = "ms") -> Apply:
    return Apply(MACHINE, machine(name, owner), "wanted")


def deletes(name: str) -> Delete:
    return Delete(Ref(MACHINE, name, "ns"), f"Machine-{name}", "too many")


def denied_by(actions: Iterable[Action], objects: Iterable[Object]) -> str:
    """The name of the guard that denies the last action, after the others were allowed; else ""."""
    *before, action = actions
    view = view_of(READER, "ns/x", objects)
    refusals = [refusal for guard in GUARDS if (refusal := guard(action, view, before))]
    assert all("Machine ns/" in refusal.reason for refusal in refusals)
    return refusals[0].guard if refusals else ""


THREE = [machine("a"), machine("b"), machine("c")]
CEILING, MINIMUM = "deny-machine-above-maximum", "keep-minimum-available-machines"


@pytest.mark.parametrize(
    ("actions", "objects", "guard"),
    [
        ([creates("d")], [machine("a"), machine_set()], ""),
        ([creates("d")], [*THREE, machine_set()], CEILING),
        ([creates("a")], [*THREE, machine_set()], ""),  # it exists: nothing is created
        ([creates("d"), creates("e")], [machine("a"), machine("b"), machine_set()], CEILING),
        ([creates("d")], [machine("a", deleting=True), machine("b"), machine("c"), machine_set()], CEILING),
        ([creates("e", "new")], [*THREE, machine_set(), machine_set("new"), deployment()], ""),
        (
            [creates("e", "new"), creates("f", "new")],
            [*THREE, machine_set(), machine_set("new"), deployment()],
            CEILING,
        ),
    ],
)
def test_machines_do_not_exceed_the_maximum_of_their_set_and_deployment(
    actions: list[Action], objects: list[Object], guard: str
) -> None:
    assert denied_by(actions, [cluster(), *objects]) == guard


def test_machines_of_another_cluster_do_not_count() -> None:
    """Users write owner references: a Machine is no replica of an owner in another Cluster."""
    foreign = [machine(name, cluster="other") for name in "xyz"]
    assert denied_by([creates("d")], [cluster(), *foreign, machine_set()]) == ""
    assert denied_by([deletes("a")], [cluster(), machine_set(), *THREE, *foreign, deployment(3)]) == MINIMUM


def test_no_machine_is_created_in_a_deleting_cluster() -> None:
    objects = [cluster(deleting=True), machine_set()]
    assert denied_by([creates("a")], objects) == "deny-machine-in-deleting-cluster"


@pytest.mark.parametrize(
    ("objects", "guard"),
    [
        ([cluster(), machine("a")], ""),
        ([cluster(paused=True), machine("a")], "deny-deleting-paused-machine"),
        ([cluster(), machine("a", annotations={"cluster.x-k8s.io/paused": ""})], "deny-deleting-paused-machine"),
    ],
)
def test_a_paused_machine_is_not_deleted(objects: list[Object], guard: str) -> None:
    assert denied_by([deletes("a")], objects) == guard


@pytest.mark.parametrize(
    ("actions", "objects", "guard"),
    [
        ([deletes("a")], [*THREE, deployment(3)], MINIMUM),
        ([deletes("a")], [*THREE, deployment(2)], ""),
        ([deletes("a"), deletes("b")], [*THREE, deployment(2)], MINIMUM),
        ([deletes("a")], [*THREE, deployment(3, unavailable=1)], ""),
        ([deletes("a")], [*THREE, machine("d", "new"), machine_set("new"), deployment(3)], ""),
        ([deletes("a")], [*THREE, machine("d", "new", deleting=True), machine_set("new"), deployment(3)], MINIMUM),
        ([deletes("d")], [*THREE, machine("d", available=False), deployment(4)], ""),
        ([deletes("a")], [machine("a", annotations={"cluster.x-k8s.io/delete-machine": ""}), deployment(3)], ""),
        ([deletes("a")], [*THREE, deployment(3, deleting=True)], ""),
    ],
)
def test_available_machines_do_not_fall_below_the_minimum_of_the_strategy(
    actions: list[Action], objects: list[Object], guard: str
) -> None:
    assert denied_by(actions, [cluster(), machine_set(), *objects]) == guard
