"""Projections of workload cluster objects that a drain reads: only the fields that decide about Pods and volumes."""

from __future__ import annotations

from collections.abc import Iterable

from herder.api.capi.kinds import DAEMON_SET, NAMESPACE, POD
from herder.api.capi.typed import filled, mapping, mappings, string_map, text, texts, time
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Observe, Projection

MIRROR = "kubernetes.io/config.mirror"  # the annotation of a static Pod's mirror Pod

_OWN = ("name", "namespace", "uid", "resourceVersion")
_LONG_AGO = "1970-01-01T00:00:00Z"


def pods_of(cluster: str, node: str) -> Observe:
    """Watch the Pods of a Node, so that a terminated Pod is noticed at once."""
    return Observe(cluster, POD, fields=f"spec.nodeName={node}", projection=POD_RECORD)


def daemon_sets_of(cluster: str) -> Observe:
    return Observe(cluster, DAEMON_SET, freshness=LIST_FRESHNESS, projection=DAEMON_SET_RECORD)


def namespaces_of(cluster: str) -> Observe:
    return Observe(cluster, NAMESPACE, freshness=LIST_FRESHNESS, projection=NAMESPACE_RECORD)


def claims_of(pod: Object) -> Iterable[str]:
    """Return the PersistentVolumeClaims of a Pod as `namespace/name`; ephemeral claims are named after the Pod."""
    meta = pod["metadata"]
    namespace = meta.get("namespace", "")
    for volume in pod["spec"]["volumes"]:
        if "persistentVolumeClaim" in volume:
            yield f"{namespace}/{volume['persistentVolumeClaim']['claimName']}"
        elif "ephemeral" in volume:
            yield f"{namespace}/{meta['name']}-{volume['name']}"


def controller_of(pod: Object) -> Object | None:
    owners: list[Object] = pod["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), None)


def full_name(obj: Object) -> str:
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"


LIST_FRESHNESS = 20.0


def _pod(pod: Object) -> Object:
    meta = mapping(pod.get("metadata"))
    kept = _metadata(meta)
    owners = mappings(meta.get("ownerReferences"))
    controller = next((owner for owner in owners if owner.get("controller") is True), None)
    if controller is not None:
        kept["ownerReferences"] = [{**texts(("kind", "name"), controller), "controller": True}]
    if MIRROR in string_map(meta.get("annotations")):
        kept["annotations"] = {MIRROR: ""}
    found = mappings(mapping(pod.get("spec")).get("volumes"))
    volumes = [record for volume in found if (record := _volume(volume))]
    phase = text(mapping(pod.get("status")).get("phase"))
    return _record(POD, kept) | {"spec": {"volumes": volumes}, "status": {"phase": phase}}


def _volume(volume: Object) -> Object | None:
    name = text(volume.get("name"))
    if "persistentVolumeClaim" in volume:
        claim = {"claimName": text(mapping(volume["persistentVolumeClaim"]).get("claimName"))}
        return {"name": name, "persistentVolumeClaim": claim}
    return next(({"name": name, source: {}} for source in ("emptyDir", "ephemeral") if source in volume), None)


def _daemon_set(obj: Object) -> Object:
    return _record(DAEMON_SET, _metadata(mapping(obj.get("metadata"))))


def _namespace(obj: Object) -> Object:
    return _record(NAMESPACE, _metadata(mapping(obj.get("metadata"))))


def _record(kind: Kind, metadata: Object) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}


def _metadata(meta: Object) -> Object:
    """Keep a name and, if the object is being deleted, a valid deletionTimestamp."""
    deleted = (time(meta["deletionTimestamp"]) or _LONG_AGO) if meta.get("deletionTimestamp") else ""
    own = filled(labels=string_map(meta.get("labels")), deletionTimestamp=deleted)
    return {"name": "", **texts(_OWN, meta), **own}


POD_RECORD = Projection("drained-pod", _pod)
DAEMON_SET_RECORD = Projection("daemon-set-name", _daemon_set)
NAMESPACE_RECORD = Projection("namespace-labels", _namespace)
