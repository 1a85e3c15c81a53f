"""Preflight checks before Machines are created or remediated: control plane stability and version skew."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from herder.api.capi.contract import control_plane, reference_group
from herder.api.capi.names import SKIP_PREFLIGHT_CHECKS, annotations_of
from herder.api.capi.versions import Version, parse
from herder.controllers.capi.externals import External, look_up
from herder.controllers.capi.machineset.scope import MachineSetScope
from herder.engine.meta.kinds import Object

ALL = "All"
CONTROL_PLANE_IS_STABLE = "ControlPlaneIsStable"
KUBERNETES_VERSION_SKEW = "KubernetesVersionSkew"
KUBEADM_VERSION_SKEW = "KubeadmVersionSkew"

OLDER_MINORS = 3
"""How many minor versions a kubelet may be older than its control plane."""
KUBEADM = ("bootstrap.cluster.x-k8s.io", "KubeadmConfigTemplate")


def failed_checks(scope: MachineSetScope, action: str) -> list[str]:
    """Messages of failed checks; empty if the action may proceed or the control plane has no version."""
    skipped = _skipped(scope.machine_set)
    reference = (scope.cluster.get("spec") or {}).get("controlPlaneRef")
    if ALL in skipped or not reference:
        return []
    where = f"{scope.namespace}/{reference.get('name', '')}"
    found = look_up(scope.view, reference, scope.namespace)
    failure = f'failed to perform "{action}": failed to perform preflight checks:'
    if found.obj is None:
        return [f"{failure} failed to get ControlPlane {where}" + (f": {found.problem}" if found.problem else "")]
    try:
        return list(_failures(found, scope.machine_set, skipped, where))
    except _Unparsable as error:
        return [f"{failure} {error}"]


def _failures(found: External, machine_set: Object, skipped: set[str], where: str) -> Iterable[str]:
    assert found.obj is not None
    text = control_plane.version(found.obj, found.contract)
    if not text:
        return
    version = _parsed(text, f"ControlPlane {where}")
    if CONTROL_PLANE_IS_STABLE not in skipped:
        yield from _stable(found, version, where)
    wanted = machine_set["spec"]["template"]["spec"].get("version")
    if not wanted:
        return
    own = _parsed(wanted, f"MachineSet {machine_set['metadata']['namespace']}/{machine_set['metadata']['name']}")
    checks: dict[str, Callable[[], Iterable[str]]] = {
        KUBERNETES_VERSION_SKEW: lambda: _kubernetes_skew(own, version),
        KUBEADM_VERSION_SKEW: lambda: _kubeadm_skew(own, version, machine_set),
    }
    for name, check in checks.items():
        if name not in skipped:
            yield from check()


def _stable(found: External, wanted: Version, where: str) -> Iterable[str]:
    assert found.obj is not None
    kind, current = found.obj["kind"], control_plane.status_version(found.obj, found.contract)
    if not current:
        yield f"{kind} {where} is provisioning {_by(CONTROL_PLANE_IS_STABLE)}"
        return
    running = _parsed(current, f"ControlPlane {where}")
    if wanted.newer_than(running) or wanted.same_but_build(running):
        yield f"{kind} {where} is upgrading {_by(CONTROL_PLANE_IS_STABLE)}"


def _kubernetes_skew(own: Version, control: Version) -> Iterable[str]:
    if own.minor > control.minor:
        how = "higher than ControlPlane version"
    elif own.minor < control.minor - OLDER_MINORS:
        how = f"more than {OLDER_MINORS} minor versions older than the ControlPlane version"
    else:
        return
    yield (
        f"MachineSet version ({own}) and ControlPlane version ({control}) do not conform to the kubernetes version skew"
        f" policy as MachineSet version is {how} {_by(KUBERNETES_VERSION_SKEW)}"
    )


def _kubeadm_skew(own: Version, control: Version, machine_set: Object) -> Iterable[str]:
    config = (machine_set["spec"]["template"]["spec"].get("bootstrap") or {}).get("configRef") or {}
    if (reference_group(config), config.get("kind")) == KUBEADM and own.minor != control.minor:
        yield (
            f"MachineSet version ({own}) and ControlPlane version ({control}) do not conform to kubeadm version skew"
            " policy as kubeadm only supports joining with the same major+minor version as the control plane"
            f" {_by(KUBEADM_VERSION_SKEW)}"
        )


def _skipped(machine_set: Object) -> set[str]:
    return {name.strip() for name in annotations_of(machine_set).get(SKIP_PREFLIGHT_CHECKS, "").split(",")}


def _by(check: str) -> str:
    return f'("{check}" preflight check failed)'


class _Unparsable(ValueError):
    pass


def _parsed(text: str, whose: str) -> Version:
    try:
        return parse(text)
    except ValueError as error:
        raise _Unparsable(f'failed to parse version "{text}" of {whose}: {error}') from None
