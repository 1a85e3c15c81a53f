"""Names of kubeadm nodes whose Machines are deleted are marked in their cluster."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import MACHINE
from herder.api.rke import names
from herder.controllers.planner import removed_nodes
from herder.controllers.planner.removed_nodes import CONTROLLER
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Apply, Decision
from herder.engine.runtime.view import Observed, Unreachable
from herder.kubeadm import csr_approver
from tests.support.builders import NOW, patches_of, reconcile, writes_of
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import NAME, NAMESPACE

KUBEADM = objects.control_plane(kubernetesVersion="v1.36.3+kubeadm1")


def machine(**options: Any) -> Object:
    return objects.machine("a", **{"deleting": True, "address": "10.0.0.1", **options})


def decide(
    *, of: Object | None = None, plane: Object = KUBEADM, cluster: Object | None = None, seen: Any = None
) -> Decision:
    existing = (of or machine(), plane, cluster or objects.cluster())
    return reconcile(CONTROLLER, f"{NAMESPACE}/a", *existing, observed=lambda _request: seen or Observed((), NOW))


def test_the_record_of_a_removed_node_is_marked_once() -> None:
    mark, done = writes_of(decide())
    assert isinstance(mark, Apply)
    assert mark.target == f"{NAMESPACE}/{NAME}"
    (patch,) = patches_of(decide(), MACHINE)
    assert patch is not mark
    annotated = machine()
    annotated["metadata"]["annotations"] = patch.patch["metadata"]["annotations"]
    assert writes_of(decide(of=annotated)) == []
    assert done == patch


def test_the_mark_is_the_one_that_the_approver_reads() -> None:
    record = removed_nodes.marked_record(f"{csr_approver.RECORD_PREFIX}a")
    assert csr_approver.is_removed(record)
    assert csr_approver.RECORDS.endswith(f"/{removed_nodes.RECORD_NAMESPACE}/configmaps")
    assert removed_nodes.RECORD_PREFIX == csr_approver.RECORD_PREFIX
    assert {csr_approver.RECORD_LABEL: csr_approver.RECORD_OWNER} == removed_nodes.RECORD_LABELS
    assert names.REMOVED_NODE == csr_approver.REMOVED


@pytest.mark.parametrize(
    "options",
    [
        {"of": machine(deleting=False)},
        {"of": machine(address="")},
        {"plane": objects.control_plane()},
        {"plane": objects.control_plane(kubernetesVersion="other")},
        {"cluster": objects.cluster(deleting=True)},
        {"seen": Unreachable("no route", NOW)},
    ],
)
def test_other_machines_are_not_marked(options: dict[str, Any]) -> None:
    assert writes_of(decide(**options)) == []
