"""Properties of Pods that decide how a drain treats them."""

from __future__ import annotations

from herder.api.capi.drain_records import MIRROR, controller_of
from herder.api.capi.names import annotations_of
from herder.engine.meta.kinds import Object


def is_static(pod: Object) -> bool:
    """Whether it is the mirror of a static Pod, which only the kubelet can remove."""
    return MIRROR in annotations_of(pod)


def is_finished(pod: Object) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")


def is_terminating(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def has_daemon_set(pod: Object) -> bool:
    controller = controller_of(pod)
    return controller is not None and controller.get("kind") == "DaemonSet"


def has_local_data(pod: Object) -> bool:
    return any("emptyDir" in volume for volume in pod["spec"]["volumes"])
