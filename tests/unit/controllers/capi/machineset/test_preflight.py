"""What is checked of the control plane before a MachineSet makes Machines."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import CLUSTER, MACHINE_SET
from herder.controllers.capi.machineset.controller import CONTROLLER
from herder.controllers.capi.machineset.preflight import failed_checks
from herder.controllers.capi.machineset.scope import new_scope
from tests.unit.controllers.capi.machineset.sets import SET, ready_set, world
from tests.unit.controllers.capi.world import CONTROL, World, made

KUBEADM = {"configRef": {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfigTemplate", "name": "boot"}}

SKEW = "do not conform to the kubernetes version skew policy as MachineSet version is"


def _world(
    *, version: str = "", wanted: str = "", running: str | None = None, bootstrap: Any = None, skip: str = ""
) -> World:
    annotations = {"machineset.cluster.x-k8s.io/skip-preflight-checks": skip} if skip else {}
    machines = ready_set(1, annotations=annotations)
    if version:
        machines["spec"]["template"]["spec"]["version"] = version
    if bootstrap:
        machines["spec"]["template"]["spec"]["bootstrap"] = bootstrap
    control = made(CONTROL, "control", spec={"version": wanted} if wanted else {})
    if running is not None:
        control["status"] = {"version": running}
    w = world(machines, control)
    reference = {"apiGroup": CONTROL.group, "kind": CONTROL.kind, "name": "control"}
    w.change(w.get(CLUSTER, "herd"), {"spec": {"controlPlaneRef": reference}})
    return w


def _failures(w: World) -> list[str]:
    view = w.view(CONTROLLER, SET)
    return failed_checks(new_scope(view, w.get(MACHINE_SET, SET), w.get(CLUSTER, "herd")), "Scale up")


@pytest.mark.parametrize(
    "given",
    [
        {},  # a control plane that has no version
        {"wanted": "v1.31.0", "running": "v1.31.0"},
        {"wanted": "v1.31.0", "running": "v1.31.0", "version": "v1.31.9"},
        {"wanted": "v1.31.0", "running": "v1.31.0", "version": "v1.28.0"},
        {"wanted": "v1.31.0", "running": "v1.31.0", "version": "v1.31.0", "bootstrap": KUBEADM},
        {"wanted": "v1.31.0", "skip": "All"},
        {"wanted": "v1.31.0", "skip": "ControlPlaneIsStable"},
        {"wanted": "v1.31.0", "running": "v1.31.0", "version": "v1.32.0", "skip": "Other, KubernetesVersionSkew"},
        {"wanted": "v1.30.0", "running": "v1.31.0"},  # not what was asked for, but not an upgrade
    ],
)
def test_passes(given: dict[str, Any]) -> None:
    assert _failures(_world(**given)) == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"wanted": "v1.31.0"},
            'TestControlPlane default/control is provisioning ("ControlPlaneIsStable" preflight check failed)',
        ),
        (
            {"wanted": "v1.31.1", "running": "v1.31.0"},
            'TestControlPlane default/control is upgrading ("ControlPlaneIsStable" preflight check failed)',
        ),
        (
            {"wanted": "v1.31.0+rke2r2", "running": "v1.31.0+rke2r1"},
            'TestControlPlane default/control is upgrading ("ControlPlaneIsStable" preflight check failed)',
        ),
        (
            {"wanted": "v1.31.0", "running": "v1.31.0", "version": "v1.32.0"},
            f"MachineSet version (1.32.0) and ControlPlane version (1.31.0) {SKEW} higher than ControlPlane version"
            ' ("KubernetesVersionSkew" preflight check failed)',
        ),
        (
            {"wanted": "v1.31.0", "running": "v1.31.0", "version": "v1.27.4"},
            f"MachineSet version (1.27.4) and ControlPlane version (1.31.0) {SKEW} more than 3 minor versions older"
            ' than the ControlPlane version ("KubernetesVersionSkew" preflight check failed)',
        ),
        (
            {"wanted": "v1.31.0", "running": "v1.31.0", "version": "v1.30.0", "bootstrap": KUBEADM},
            "MachineSet version (1.30.0) and ControlPlane version (1.31.0) do not conform to kubeadm version skew"
            " policy as kubeadm only supports joining with the same major+minor version as the control plane"
            ' ("KubeadmVersionSkew" preflight check failed)',
        ),
        (
            {"wanted": "latest"},
            'failed to perform "Scale up": failed to perform preflight checks: failed to parse version "latest" of'
            " ControlPlane default/control: No Major.Minor.Patch elements found",
        ),
    ],
)
def test_fails(given: dict[str, Any], message: str) -> None:
    assert _failures(_world(**given)) == [message]


def test_a_missing_control_plane_is_told() -> None:
    w = _world(wanted="v1.31.0")
    w.remove(w.get(CONTROL, "control"))
    (message,) = _failures(w)
    assert message.endswith("failed to get ControlPlane default/control")


def test_without_a_control_plane_there_is_nothing_to_check() -> None:
    w = world(ready_set(1))
    assert _failures(w) == []
