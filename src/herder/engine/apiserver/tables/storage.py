"""Printers of volumes, claims, storage classes and CSI kinds."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from herder.engine.apiserver.tables.cells import NONE, UNSET, annotation, columns, name_of, spec_of, status_of
from herder.engine.apiserver.tables.duration import age
from herder.engine.apiserver.tables.printers import Printer, Printers
from herder.engine.meta.kinds import GroupKind, Object

_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}
_DEFAULT_CLASS = ("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")
_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"


def _persistent_volume(obj: Object, now: datetime) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    claim = spec.get("claimRef")
    return [
        name_of(obj),
        str((spec.get("capacity") or {}).get("storage", "0")),
        _access_modes(spec.get("accessModes")),
        spec.get("persistentVolumeReclaimPolicy", ""),
        _phase(obj),
        f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "",
        _class_of(obj),
        _or_unset(spec.get("volumeAttributesClassName")),
        status.get("reason", ""),
        age(obj, now),
        _or_unset(spec.get("volumeMode")),
    ]


def _persistent_volume_claim(obj: Object, now: datetime) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    bound = bool(spec.get("volumeName"))
    return [
        name_of(obj),
        _phase(obj),
        spec.get("volumeName", ""),
        str((status.get("capacity") or {}).get("storage", "0")) if bound else "",
        _access_modes(status.get("accessModes")) if bound else "",
        _class_of(obj),
        _or_unset(spec.get("volumeAttributesClassName")),
        age(obj, now),
        _or_unset(spec.get("volumeMode")),
    ]


def _phase(obj: Object) -> str:
    return "Terminating" if obj["metadata"].get("deletionTimestamp") else str(status_of(obj).get("phase", ""))


def _access_modes(modes: Iterable[str] | None) -> str:
    present = set(modes or ())
    return ",".join(short for mode, short in _MODES.items() if mode in present)


def _class_of(obj: Object) -> str:
    return annotation(obj, _CLASS_ANNOTATION) or str(spec_of(obj).get("storageClassName") or "")


def _or_unset(value: Any) -> str:
    return UNSET if value is None else str(value)


def _storage_class(obj: Object, now: datetime) -> list[Any]:
    is_default = any(annotation(obj, key) == "true" for key in _DEFAULT_CLASS)
    return [
        name_of(obj) + (" (default)" if is_default else ""),
        obj.get("provisioner", ""),
        obj.get("reclaimPolicy", "Delete"),
        obj.get("volumeBindingMode", "Immediate"),
        bool(obj.get("allowVolumeExpansion")),
        age(obj, now),
    ]


def _volume_attributes_class(obj: Object, now: datetime) -> list[Any]:
    return [name_of(obj), obj.get("driverName", ""), age(obj, now)]


def _volume_attachment(obj: Object, now: datetime) -> list[Any]:
    spec = spec_of(obj)
    volume = (spec.get("source") or {}).get("persistentVolumeName") or ""
    attached = bool(status_of(obj).get("attached"))
    return [name_of(obj), spec.get("attacher", ""), volume, spec.get("nodeName", ""), attached, age(obj, now)]


def _csi_node(obj: Object, now: datetime) -> list[Any]:
    return [name_of(obj), len(spec_of(obj).get("drivers") or ()), age(obj, now)]


def _csi_driver(obj: Object, now: datetime) -> list[Any]:
    spec = spec_of(obj)
    requests = spec.get("tokenRequests")
    return [
        name_of(obj),
        bool(spec.get("attachRequired", True)),
        bool(spec.get("podInfoOnMount")),
        bool(spec.get("storageCapacity")),
        UNSET if requests is None else ",".join(each.get("audience", "") for each in requests),
        bool(spec.get("requiresRepublish")),
        ",".join(spec.get("volumeLifecycleModes") or ()) or NONE,
        age(obj, now),
    ]


PRINTERS: Printers = {
    GroupKind("", "PersistentVolume"): Printer(
        columns(
            "Name", "Capacity", "Access Modes", "Reclaim Policy", "Status", "Claim", "StorageClass",
            "VolumeAttributesClass", "Reason", "Age", "+VolumeMode",
        ),
        _persistent_volume,
    ),
    GroupKind("", "PersistentVolumeClaim"): Printer(
        columns(
            "Name", "Status", "Volume", "Capacity", "Access Modes", "StorageClass", "VolumeAttributesClass", "Age",
            "+VolumeMode",
        ),
        _persistent_volume_claim,
    ),
    GroupKind("storage.k8s.io", "StorageClass"): Printer(
        columns("Name", "Provisioner", "ReclaimPolicy", "VolumeBindingMode", "AllowVolumeExpansion", "Age"),
        _storage_class,
    ),
    GroupKind("storage.k8s.io", "VolumeAttributesClass"): Printer(
        columns("Name", "DriverName", "Age"), _volume_attributes_class
    ),
    GroupKind("storage.k8s.io", "VolumeAttachment"): Printer(
        columns("Name", "Attacher:name", "PV", "Node", "Attached:boolean", "Age"), _volume_attachment
    ),
    GroupKind("storage.k8s.io", "CSINode"): Printer(columns("Name", "Drivers:integer", "Age"), _csi_node),
    GroupKind("storage.k8s.io", "CSIDriver"): Printer(
        columns(
            "Name", "AttachRequired:boolean", "PodInfoOnMount:boolean", "StorageCapacity:boolean", "TokenRequests",
            "RequiresRepublish:boolean", "Modes", "Age",
        ),
        _csi_driver,
    ),
}  # fmt: skip
