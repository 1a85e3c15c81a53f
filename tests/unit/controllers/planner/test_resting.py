"""Which workers need not be looked at, and when they are after all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from herder.api.capi.kinds import MACHINE
from herder.api.machines.kinds import MACHINE_GROUP
from herder.api.rke import names
from herder.controllers.planner.controller import CONTROLLER
from herder.controllers.planner.plan.machine_inputs import machine_inputs
from herder.controllers.planner.plan.render import PlanRecord
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.controllers.planner.rollout.up_to_date import WORKER_STATES, WorkerState
from herder.engine.meta.kinds import Object
from tests.support.views import view_of
from tests.unit.controllers.planner.objects import NAME, NAMESPACE, WORKER, entry, plan_of

SERVER, URL = "https://10.0.0.1:6443", "https://10.0.0.7:6443"
TOLD = {"type": "Reconciled", "status": "True", "reason": "Reconciled", "message": ""}


def at_rest() -> PlanEntry:
    marks = {names.JOIN_URL: URL, names.JOINED_TO: SERVER, names.INTERNAL_ADDRESS: "10.0.0.7"}
    made = entry("w", (WORKER,), plan=plan_of(), marks=marks, address="10.0.0.7")
    made.machine["status"]["conditions"].append(TOLD)
    view = view_of(CONTROLLER, f"{NAMESPACE}/{NAME}", [made.machine, made.plan.secret])
    found = PlanEntry(view.get(MACHINE, "w") or {}, made.plan)  # with its uid
    made.plan.secret["metadata"]["annotations"][names.PLAN_INPUTS] = str(
        PlanRecord("common", machine_inputs(view, found, SERVER).digest, "sum")
    )
    return made


def standing(worker: PlanEntry) -> WorkerState | None:
    view = view_of(CONTROLLER, f"{NAMESPACE}/{NAME}", [worker.machine, worker.plan.secret])
    (found,) = view.groups(WORKER_STATES, f"{NAMESPACE}/{NAME}")
    return found


def test_a_worker_that_has_its_plan_and_is_told_to_have_it_is_at_rest() -> None:
    assert standing(at_rest()) == WorkerState(
        windows=False, port=6443, joined_to=SERVER, common="common", kubelet="v1.33.4+k3s1"
    )


def _marked(mark: str, value: str) -> Callable[[Object, Object], None]:
    def change(_machine: Object, secret: Object) -> None:
        secret["metadata"]["annotations"][mark] = value

    return change


def _labelled(label: str, value: str) -> Callable[[Object, Object], None]:
    def change(_machine: Object, secret: Object) -> None:
        secret["metadata"]["labels"][label] = value

    return change


def _data(key: str, value: str | None) -> Callable[[Object, Object], None]:
    def change(_machine: Object, secret: Object) -> None:
        secret["data"][key] = value

    return change


def _status(**parts: Any) -> Callable[[Object, Object], None]:
    def change(machine: Object, _secret: Object) -> None:
        machine["status"] |= parts

    return change


def _deleted(machine: Object, _secret: Object) -> None:
    machine["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"


def _relabelled(machine: Object, _secret: Object) -> None:
    machine["metadata"]["labels"]["gpu"] = "yes"


def _driven(machine: Object, _secret: Object) -> None:
    machine["spec"]["infrastructureRef"] = {"apiGroup": MACHINE_GROUP, "kind": "DigitaloceanMachine", "name": "w"}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_data("plan-state", "cGVuZGluZw=="), id="it was asked for something"),
        pytest.param(_data("plan-state", "ZmFpbGVk"), id="its plan failed"),
        pytest.param(_data("plan", None), id="it has no plan"),
        pytest.param(_data("appliedPlan", None), id="what it applied is not kept yet"),
        pytest.param(_data("probe-statuses", "eyJrdWJlbGV0Ijp7fX0="), id="a probe of it fails"),
        pytest.param(_marked(names.DRAIN_OPTIONS, "{}"), id="it is drained"),
        pytest.param(_marked(names.UNCORDON, "{}"), id="it is being uncordoned"),
        pytest.param(_marked(names.JOIN_URL, "https://10.0.0.8:6443"), id="its address has changed"),
        pytest.param(_marked(names.JOINED_TO, ""), id="nobody knows whom it joined"),
        pytest.param(_marked(names.TAINTS, '[{"key":"a","effect":"NoExecute"}]'), id="it is to have a taint"),
        pytest.param(_marked(names.TAINTS, "no json"), id="what it is to have cannot be read"),
        pytest.param(_labelled(names.ETCD_ROLE, "true"), id="it is a server"),
        pytest.param(_labelled(names.INIT_NODE, "true"), id="it begins the cluster"),
        pytest.param(_labelled(names.MACHINE_NAME, "another"), id="its Secret does not lead back to it"),
        pytest.param(_status(conditions=[TOLD]), id="its infrastructure is not there"),
        pytest.param(_status(conditions=[]), id="nobody was told"),
        pytest.param(_status(phase="Failed"), id="it has failed"),
        pytest.param(_deleted, id="it goes"),
        pytest.param(_relabelled, id="selectors may choose it now"),
        pytest.param(_driven, id="its driver has not told its address"),
    ],
)
def test_a_worker_is_looked_at_when(change: Callable[[Object, Object], None]) -> None:
    worker = at_rest()
    change(worker.machine, worker.plan.secret)
    assert standing(worker) is None


def test_machines_that_others_bootstrap_are_nobodys_here() -> None:
    worker = at_rest()
    worker.machine["spec"]["bootstrap"]["configRef"]["kind"] = "KubeadmConfig"
    view = view_of(CONTROLLER, f"{NAMESPACE}/{NAME}", [worker.machine, worker.plan.secret])
    assert view.groups(WORKER_STATES, f"{NAMESPACE}/{NAME}") == {}
