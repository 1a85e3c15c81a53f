"""The guards of Machines: whatever a controller computes, these acts are refused, with a reason."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.api.guards import GUARDS
from herder.api.guards.machines import INDEXES
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Apply, Delete, Ref
from herder.engine.runtime.executor import Action
from herder.engine.runtime.handlers import Watches
from tests.support.views import view_of

READER = Controller(
    "reader",
    MACHINE,
    lambda _view: DONE,
    watches=tuple(Watches(kind) for kind in (CLUSTER, MACHINE_DEPLOYMENT, MACHINE_SET)),
    indexes={MACHINE: INDEXES},
)


def thing(kind: Kind, name: str, *, owner: Object | None = None, deleting: bool = False, **fields: Any) -> Object:
    meta: Object = {"name": name, "namespace": "ns", "uid": f"uid-{name}"}
    if owner is not None:
        reference = {key: owner[key] for key in ("apiVersion", "kind")}
        reference |= {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"], "controller": True}
        meta["ownerReferences"] = [reference]
    if deleting:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta | fields.pop("metadata", {}), **fields}


def deployment(replicas: int = 3, *, surge: int = 1, unavailable: int = 0, deleting: bool = False) -> Object:
    rolling = {"maxSurge": surge, "maxUnavailable": unavailable}
    rollout = {"strategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}
    return thing(MACHINE_DEPLOYMENT, "md", deleting=deleting, spec={"replicas": replicas, "rollout": rollout})


def machine_set(name: str = "ms", replicas: int = 3, *, deleting: bool = False) -> Object:
    return thing(MACHINE_SET, name, owner=deployment(), deleting=deleting, spec={"replicas": replicas})


def machine(
    name: str, of: str = "ms", *, available: bool = True, deleting: bool = False, annotations: Any = None
) -> Object:
    conditions = [{"type": "Available", "status": "True" if available else "False"}]
    return thing(
        MACHINE,
        name,
        owner=machine_set(of),
        deleting=deleting,
        metadata={"annotations": annotations or {}},
        spec={"clusterName": "c"},
        status={"conditions": conditions},
    )


def cluster(*, deleting: bool = False, paused: bool = False) -> Object:
    return thing(CLUSTER, "c", deleting=deleting, spec={"paused": paused})


def creates(name: str, of: str = "ms") -> Apply:
    return Apply(MACHINE, machine(name, of), "wanted")


def deletes(name: str) -> Delete:
    return Delete(Ref(MACHINE, name, "ns"), f"uid-{name}", "too many")


def refusal_of(acts: Iterable[Action], objects: Iterable[Object]) -> str:
    """Which guard refuses the last of the acts, the others having been let through."""
    *before, act = acts
    view = view_of(READER, "ns/x", objects)
    refusals = [refusal for guard in GUARDS if (refusal := guard(act, view, before))]
    assert all("Machine ns/" in refusal.reason for refusal in refusals)
    return refusals[0].guard if refusals else ""


THREE = [machine("a"), machine("b"), machine("c")]
CEILING, MINIMUM = "deny-machine-above-maximum", "keep-minimum-available-machines"


@pytest.mark.parametrize(
    ("acts", "objects", "guard"),
    [
        ([creates("d")], [machine("a"), machine_set()], ""),
        ([creates("d")], [*THREE, machine_set()], CEILING),
        ([creates("a")], [*THREE, machine_set()], ""),  # it is there: nothing is made
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
def test_never_more_machines_than_the_set_and_its_deployment_ask_for(
    acts: list[Action], objects: list[Object], guard: str
) -> None:
    assert refusal_of(acts, [cluster(), *objects]) == guard


def test_no_machine_is_made_in_a_cluster_that_goes() -> None:
    objects = [cluster(deleting=True), machine_set()]
    assert refusal_of([creates("a")], objects) == "deny-machine-in-deleting-cluster"


@pytest.mark.parametrize(
    ("objects", "guard"),
    [
        ([cluster(), machine("a")], ""),
        ([cluster(paused=True), machine("a")], "deny-deleting-paused-machine"),
        ([cluster(), machine("a", annotations={"cluster.x-k8s.io/paused": ""})], "deny-deleting-paused-machine"),
    ],
)
def test_a_paused_machine_stays(objects: list[Object], guard: str) -> None:
    assert refusal_of([deletes("a")], objects) == guard


@pytest.mark.parametrize(
    ("acts", "objects", "guard"),
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
def test_never_fewer_machines_at_work_than_the_strategy_allows(
    acts: list[Action], objects: list[Object], guard: str
) -> None:
    assert refusal_of(acts, [cluster(), machine_set(), *objects]) == guard
