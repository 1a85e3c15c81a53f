"""What is kept of the objects of a workload cluster that a drain looks at: only what decides about Pods and volumes."""

from __future__ import annotations

from collections.abc import Iterable

from herder.api.capi.kinds import DAEMON_SET, NAMESPACE, POD
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Observe, Projection

MIRROR = "kubernetes.io/config.mirror"  # marks what the kubelet shows of a static Pod

_OWN = ("name", "namespace", "uid", "resourceVersion", "labels")
_POD = (*_OWN, "deletionTimestamp")


def pods_of(cluster: str, node: str) -> Observe:
    """Watched, as a kubelet does it: a Pod that ends is news at once."""
    return Observe(cluster, POD, fields=f"spec.nodeName={node}", projection=POD_RECORD)


def daemon_sets_of(cluster: str) -> Observe:
    return Observe(cluster, DAEMON_SET, freshness=LIST_FRESHNESS, projection=DAEMON_SET_RECORD)


def namespaces_of(cluster: str) -> Observe:
    return Observe(cluster, NAMESPACE, freshness=LIST_FRESHNESS, projection=NAMESPACE_RECORD)


def claims_of(pod: Object) -> Iterable[str]:
    """The claims that a Pod's volumes use, as `namespace/name`; those made for the Pod itself are named after it."""
    meta = pod["metadata"]
    for volume in pod["spec"]["volumes"]:
        if "persistentVolumeClaim" in volume:
            yield f"{meta['namespace']}/{volume['persistentVolumeClaim']['claimName']}"
        elif "ephemeral" in volume:
            yield f"{meta['namespace']}/{meta['name']}-{volume['name']}"


def controller_of(pod: Object) -> Object | None:
    owners: list[Object] = pod["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), None)


def full_name(obj: Object) -> str:
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


LIST_FRESHNESS = 20.0


def _pod(pod: Object) -> Object:
    meta = pod["metadata"]
    kept = _only(_POD, meta)
    controller = controller_of(pod)
    if controller is not None:
        kept["ownerReferences"] = [_only(("kind", "name", "controller"), controller)]
    if MIRROR in (meta.get("annotations") or {}):
        kept["annotations"] = {MIRROR: ""}
    volumes = [told for volume in (pod.get("spec") or {}).get("volumes") or [] if (told := _volume(volume))]
    phase = (pod.get("status") or {}).get("phase", "")
    return _record(POD, kept) | {"spec": {"volumes": volumes}, "status": {"phase": phase}}


def _volume(volume: Object) -> Object | None:
    name = volume.get("name", "")
    if "persistentVolumeClaim" in volume:
        claim = {"claimName": volume["persistentVolumeClaim"].get("claimName", "")}
        return {"name": name, "persistentVolumeClaim": claim}
    return next(({"name": name, source: {}} for source in ("emptyDir", "ephemeral") if source in volume), None)


def _daemon_set(obj: Object) -> Object:
    return _record(DAEMON_SET, _only(("name", "namespace", "uid", "resourceVersion"), obj["metadata"]))


def _namespace(obj: Object) -> Object:
    return _record(NAMESPACE, _only(_OWN, obj["metadata"]))


def _record(kind: Kind, metadata: Object) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}


def _only(names: Iterable[str], part: Object) -> Object:
    return {name: part[name] for name in names if part.get(name)}


POD_RECORD = Projection("drained-pod", _pod)
DAEMON_SET_RECORD = Projection("daemon-set-name", _daemon_set)
NAMESPACE_RECORD = Projection("namespace-labels", _namespace)
