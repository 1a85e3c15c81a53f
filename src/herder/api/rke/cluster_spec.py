"""A provisioning Cluster's spec as text, for the annotation of its control plane and for snapshots."""

from __future__ import annotations

import base64
import gzip
import hashlib

import msgspec

from herder.api import gojson
from herder.api.gzipped import gunzip
from herder.api.rke.names import CLUSTER_SPEC
from herder.engine.meta.kinds import Object

OPERATIONS = ("etcdSnapshotCreate", "etcdSnapshotRestore", "rotateCertificates", "rotateEncryptionKeys")
LARGEST = 192 << 10  # of 256 KiB that all annotations of an object may have
_LARGEST_TEXT = 4 << 20  # the API server stores no object of more than 3 MiB


def packed(spec: Object) -> str:
    """base64(gzip(JSON)), without operations: doing one is no change of the cluster."""
    config = {name: value for name, value in (spec.get("rkeConfig") or {}).items() if name not in OPERATIONS}
    return base64.b64encode(gzip.compress(gojson.marshalled({**spec, "rkeConfig": config}), mtime=0)).decode()


def unpacked(text: str) -> Object:
    """ValueError for what is no packed spec."""
    try:
        spec = msgspec.json.decode(gunzip(base64.b64decode(text, validate=True), _LARGEST_TEXT))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not the spec of a cluster: {error}") from None
    if not isinstance(spec, dict):
        raise ValueError("not the spec of a cluster: an object is expected")
    return spec


def digest(spec: Object) -> str:
    """Of a control plane's spec, but for what the planner itself writes there: what `status.appliedDigest` is of."""
    own = {part: value for part, value in spec.items() if part != "controlPlaneEndpoint"}
    return hashlib.sha256(msgspec.json.encode(own, order="sorted")).hexdigest()


def is_handed_over(cluster: Object, control_plane: Object) -> bool:
    """Whether the control plane was made from the cluster as it is now."""
    annotations = control_plane["metadata"].get("annotations") or {}
    asked, reported = cluster["spec"].get("rkeConfig") or {}, control_plane.get("spec") or {}
    if any(asked.get(operation) != reported.get(operation) for operation in OPERATIONS):
        return False
    try:
        return unpacked(annotations.get(CLUSTER_SPEC, "")) == unpacked(packed(cluster["spec"]))
    except ValueError:
        return False


def is_applied(control_plane: Object) -> bool:
    """Whether its machines are as its spec is now."""
    return bool((control_plane.get("status") or {}).get("appliedDigest") == digest(control_plane["spec"]))
