"""Defaults of pods, their parts, and pod templates."""

from __future__ import annotations

from herder.engine.apiserver.builtin.defaults.fill import Fill, fill_absent, fill_empty, filling
from herder.engine.meta.kinds import Object

_SOURCES_WITH_MODE = 0o644


def pod(obj: Object) -> None:
    """Defaults of pods, but not of templates: requests default to limits, and host ports to container ports with
    hostNetwork."""
    spec = obj.setdefault("spec", {})
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    for container in containers:
        resources = container.get("resources") or {}
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
    fill_absent(spec, enableServiceLinks=True)
    if spec.get("hostNetwork"):
        for container in containers:
            for port in container.get("ports") or ():
                fill_empty(port, hostPort=port.get("containerPort", 0))


def pod_spec(spec: Object) -> None:
    fill_empty(spec, dnsPolicy="ClusterFirst", restartPolicy="Always", schedulerName="default-scheduler")
    fill_absent(spec, securityContext={}, terminationGracePeriodSeconds=30)
    # The deprecated alias is kept equal, for clients that read only that.
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account


def container(obj: Object) -> None:
    fill_empty(
        obj,
        imagePullPolicy=pull_policy(obj.get("image") or ""),
        terminationMessagePath="/dev/termination-log",
        terminationMessagePolicy="File",
    )


def pull_policy(image: str) -> str:
    return "Always" if image_tag(image) == "latest" else "IfNotPresent"


def image_tag(image: str) -> str:
    """Return the tag of an image reference; `latest` without tag and digest."""
    if not image:
        return ""
    if "@" in image:
        return ""
    last = image.rpartition("/")[2]
    _, colon, tag = last.rpartition(":")
    return tag if colon else "latest"


_VOLUME_OWN_KEYS = {"name"}


def volume(obj: Object) -> None:
    if not obj.keys() - _VOLUME_OWN_KEYS:
        obj["emptyDir"] = {}
    image = obj.get("image")
    if image is not None:
        fill_empty(image, pullPolicy=pull_policy(image.get("reference") or ""))


BY_STRUCT: dict[str, Fill] = {
    "core.v1.Pod": pod,
    "core.v1.PodSpec": pod_spec,
    "core.v1.Container": container,
    "core.v1.EphemeralContainerCommon": container,
    "core.v1.ContainerPort": filling(fill_empty, protocol="TCP"),
    "core.v1.Probe": filling(fill_empty, timeoutSeconds=1, periodSeconds=10, successThreshold=1, failureThreshold=3),
    "core.v1.HTTPGetAction": filling(fill_empty, path="/", scheme="HTTP"),
    "core.v1.GRPCAction": filling(fill_absent, service=""),
    "core.v1.ObjectFieldSelector": filling(fill_empty, apiVersion="v1"),
    "core.v1.Volume": volume,
    "core.v1.SecretVolumeSource": filling(fill_absent, defaultMode=_SOURCES_WITH_MODE),
    "core.v1.ConfigMapVolumeSource": filling(fill_absent, defaultMode=_SOURCES_WITH_MODE),
    "core.v1.DownwardAPIVolumeSource": filling(fill_absent, defaultMode=_SOURCES_WITH_MODE),
    "core.v1.ProjectedVolumeSource": filling(fill_absent, defaultMode=_SOURCES_WITH_MODE),
    "core.v1.ServiceAccountTokenProjection": filling(fill_absent, expirationSeconds=3600),
    "core.v1.HostPathVolumeSource": filling(fill_absent, type=""),
    "core.v1.ISCSIVolumeSource": filling(fill_empty, iscsiInterface="default"),
    "core.v1.ISCSIPersistentVolumeSource": filling(fill_empty, iscsiInterface="default"),
    "core.v1.RBDVolumeSource": filling(fill_empty, keyring="/etc/ceph/keyring", pool="rbd", user="admin"),
    "core.v1.RBDPersistentVolumeSource": filling(fill_empty, keyring="/etc/ceph/keyring", pool="rbd", user="admin"),
    "core.v1.AzureDiskVolumeSource": filling(
        fill_absent, cachingMode="ReadWrite", fsType="ext4", kind="Shared", readOnly=False
    ),
    "core.v1.ScaleIOVolumeSource": filling(fill_empty, fsType="xfs", storageMode="ThinProvisioned"),
    "core.v1.ScaleIOPersistentVolumeSource": filling(fill_empty, fsType="xfs", storageMode="ThinProvisioned"),
}
