"""Preflight checks of the control plane before a MachineSet creates Machines."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import CLUSTER, MACHINE_SET
from herder.controllers.capi.machineset.controller import CONTROLLER
from herder.controllers.capi.machineset.preflight import failed_checks
from herder.controllers.capi.machineset.scope import new_scope
from tests.support.builders import object_reference
from tests.unit.controllers.capi.fake_server import FakeServer
from tests.unit.controllers.capi.machineset.objects import SET, ready_set, server_with
from tests.unit.controllers.capi.objects import CONTROL_PLANE, provider_object

KUBEADM = {"configRef": {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfigTemplate", "name": "boot"}}

SKEW = "do not conform to the kubernetes version skew policy as MachineSet version is"


def _server_with_control_plane(
    *, version: str = "", wanted: str = "", running: str | None = None, bootstrap: Any = None, skip: str = ""
) -> FakeServer:
    annotations = {"machineset.cluster.x-k8s.io/skip-preflight-checks": skip} if skip else {}
    set_object = ready_set(1, annotations=annotations)
    if version:
        set_object["spec"]["template"]["spec"]["version"] = version
    if bootstrap:
        set_object["spec"]["template"]["spec"]["bootstrap"] = bootstrap
    control_plane = provider_object(CONTROL_PLANE, "control", spec={"version": wanted} if wanted else {})
    if running is not None:
        control_plane["status"] = {"version": running}
    server = server_with(set_object, control_plane)
    reference = object_reference(CONTROL_PLANE, "control")
    server.change(server.get(CLUSTER, "herd"), {"spec": {"controlPlaneRef": reference}})
    return server


def _failures(server: FakeServer) -> list[str]:
    view = server.view(CONTROLLER, SET)
    return failed_checks(new_scope(view, server.get(MACHINE_SET, SET), server.get(CLUSTER, "herd")), "Scale up")


@pytest.mark.parametrize(
    "options",
    [
        {},  # the control plane has no version
        {"wanted": "v1.31.0", "running": "v1.31.0"},
        {"wanted": "v1.31.0", "running": "v1.31.0", "version": "v1.31.9"},
        {"wanted": "v1.31.0", "running": "v1.31.0", "version": "v1.28.0"},
        {"wanted": "v1.31.0", "running": "v1.31.0", "version": "v1.31.0", "bootstrap": KUBEADM},
        {"wanted": "v1.31.0", "skip": "All"},
        {"wanted": "v1.31.0", "skip": "ControlPlaneIsStable"},
        {"wanted": "v1.31.0", "running": "v1.31.0", "version": "v1.32.0", "skip": "Other, KubernetesVersionSkew"},
        {"wanted": "v1.30.0", "running": "v1.31.0"},  # differs from the spec, but is no upgrade
    ],
)
def test_passing_checks(options: dict[str, Any]) -> None:
    assert _failures(_server_with_control_plane(**options)) == []


@pytest.mark.parametrize(
    ("options", "message"),
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
def test_failing_checks(options: dict[str, Any], message: str) -> None:
    assert _failures(_server_with_control_plane(**options)) == [message]


def test_missing_control_plane_is_reported() -> None:
    server = _server_with_control_plane(wanted="v1.31.0")
    server.remove(server.get(CONTROL_PLANE, "control"))
    (message,) = _failures(server)
    assert message.endswith("failed to get ControlPlane default/control")


def test_cluster_without_control_plane_passes() -> None:
    server = server_with(ready_set(1))
    assert _failures(server) == []
