"""Up-to-date workers, which the planner skips, and the changes that make it look at them again."""

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
from tests.support.builders import DELETED_AT, new_condition
from tests.support.views import view_of
from tests.unit.controllers.planner.objects import NAME, NAMESPACE, WORKER, entry, plan_of

SERVER, URL = "https://10.0.0.1:6443", "https://10.0.0.7:6443"
RECONCILED = new_condition("Reconciled")


def up_to_date_worker() -> PlanEntry:
    annotations = {names.JOIN_URL: URL, names.JOINED_TO: SERVER, names.INTERNAL_ADDRESS: "10.0.0.7"}
    worker = entry("w", (WORKER,), plan=plan_of(), annotations=annotations, address="10.0.0.7")
    worker.machine["status"]["conditions"].append(RECONCILED)
    view = view_of(CONTROLLER, f"{NAMESPACE}/{NAME}", [worker.machine, worker.plan.secret])
    worker_with_uid = PlanEntry(view.get(MACHINE, "w") or {}, worker.plan)  # has its uid
    worker.plan.secret["metadata"]["annotations"][names.PLAN_INPUTS] = str(
        PlanRecord("common", machine_inputs(view, worker_with_uid, SERVER).digest, "sum")
    )
    return worker


def worker_state(worker: PlanEntry) -> WorkerState | None:
    view = view_of(CONTROLLER, f"{NAMESPACE}/{NAME}", [worker.machine, worker.plan.secret])
    (found,) = view.groups(WORKER_STATES, f"{NAMESPACE}/{NAME}")
    return found


def test_a_worker_with_an_applied_and_reported_plan_is_up_to_date() -> None:
    assert worker_state(up_to_date_worker()) == WorkerState(
        windows=False, port=6443, joined_to=SERVER, common="common", kubelet="v1.33.4+k3s1"
    )


def _with_annotation(annotation: str, value: str) -> Callable[[Object, Object], None]:
    def change(_machine: Object, secret: Object) -> None:
        secret["metadata"]["annotations"][annotation] = value

    return change


def _with_label(label: str, value: str) -> Callable[[Object, Object], None]:
    def change(_machine: Object, secret: Object) -> None:
        secret["metadata"]["labels"][label] = value

    return change


def _with_data(key: str, value: str | None) -> Callable[[Object, Object], None]:
    def change(_machine: Object, secret: Object) -> None:
        secret["data"][key] = value

    return change


def _with_status(**fields: Any) -> Callable[[Object, Object], None]:
    def change(machine: Object, _secret: Object) -> None:
        machine["status"] |= fields

    return change


def _mark_deleted(machine: Object, _secret: Object) -> None:
    machine["metadata"]["deletionTimestamp"] = DELETED_AT


def _relabel(machine: Object, _secret: Object) -> None:
    machine["metadata"]["labels"]["gpu"] = "yes"


def _set_driver(machine: Object, _secret: Object) -> None:
    machine["spec"]["infrastructureRef"] = {"apiGroup": MACHINE_GROUP, "kind": "DigitaloceanMachine", "name": "w"}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_with_data("plan-state", "cGVuZGluZw=="), id="its plan is pending"),
        pytest.param(_with_data("plan-state", "ZmFpbGVk"), id="its plan failed"),
        pytest.param(_with_data("plan", None), id="it has no plan"),
        pytest.param(_with_data("appliedPlan", None), id="its applied plan is not stored yet"),
        pytest.param(_with_data("probe-statuses", "eyJrdWJlbGV0Ijp7fX0="), id="one of its probes fails"),
        pytest.param(_with_annotation(names.DRAIN_OPTIONS, "{}"), id="it is drained"),
        pytest.param(_with_annotation(names.UNCORDON, "{}"), id="it is being uncordoned"),
        pytest.param(_with_annotation(names.JOIN_URL, "https://10.0.0.8:6443"), id="its address has changed"),
        pytest.param(_with_annotation(names.JOINED_TO, ""), id="the server that it joined is unknown"),
        pytest.param(_with_annotation(names.TAINTS, '[{"key":"a","effect":"NoExecute"}]'), id="it gets a taint"),
        pytest.param(_with_annotation(names.TAINTS, "no json"), id="its taints cannot be parsed"),
        pytest.param(_with_label(names.ETCD_ROLE, "true"), id="it is a server"),
        pytest.param(_with_label(names.INIT_NODE, "true"), id="it is the init node"),
        pytest.param(_with_label(names.MACHINE_NAME, "another"), id="its Secret belongs to another machine"),
        pytest.param(_with_status(conditions=[RECONCILED]), id="its infrastructure is not ready"),
        pytest.param(_with_status(conditions=[]), id="its condition is not reported"),
        pytest.param(_with_status(phase="Failed"), id="it has failed"),
        pytest.param(_mark_deleted, id="it is being deleted"),
        pytest.param(_relabel, id="selectors may match it now"),
        pytest.param(_set_driver, id="its driver has not reported its address"),
    ],
)
def test_a_worker_is_not_up_to_date(change: Callable[[Object, Object], None]) -> None:
    worker = up_to_date_worker()
    change(worker.machine, worker.plan.secret)
    assert worker_state(worker) is None


def test_machines_of_another_bootstrap_provider_are_ignored() -> None:
    worker = up_to_date_worker()
    worker.machine["spec"]["bootstrap"]["configRef"]["kind"] = "KubeadmConfig"
    view = view_of(CONTROLLER, f"{NAMESPACE}/{NAME}", [worker.machine, worker.plan.secret])
    assert view.groups(WORKER_STATES, f"{NAMESPACE}/{NAME}") == {}
