"""Encode a provisioning Cluster's spec as text, for an annotation of its control plane and for snapshots."""

from __future__ import annotations

import base64
import gzip
import hashlib

import msgspec

from herder.api import gojson
from herder.api.gzipped import gunzip
from herder.api.rke import operations
from herder.api.rke.names import CLUSTER_SPEC
from herder.api.rke.operations import request_in, request_of_cluster
from herder.engine.meta.kinds import Object

MAX_ENCODED = 192 << 10  # of the 256 KiB limit for all annotations of an object
_MAX_DECODED = 4 << 20  # the API server stores no object of more than 3 MiB


def encode_spec(spec: Object, known: str = "") -> str:
    """Encode as base64(gzip(JSON)), without operations: running one does not change the cluster.

    `known` is the text of before, which is returned if it has the same content: compressing takes the longest.
    """
    content = _content(spec)
    return known if 0 < len(known) <= MAX_ENCODED and _unpacked(known) == content else _packed(content)


def _content(spec: Object) -> bytes:
    config = {name: value for name, value in (spec.get("rkeConfig") or {}).items() if name not in operations.KINDS}
    # Clients of Rancher write 0 without a request. It stays, because removing it would change the plans of servers.
    fields = {name: value for name, value in spec.items() if name != operations.AGENTS or not value}
    return gojson.marshal({**fields, "rkeConfig": config})


def _packed(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


def _unpacked(text: str) -> bytes | None:
    try:
        return gunzip(base64.b64decode(text, validate=True), _MAX_DECODED)
    except ValueError:
        return None


def decode_spec(text: str) -> Object:
    """Decode an encoded spec; raise ValueError if it is invalid."""
    try:
        spec = msgspec.json.decode(gunzip(base64.b64decode(text, validate=True), _MAX_DECODED))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"invalid cluster spec: {error}") from None
    if not isinstance(spec, dict):
        raise ValueError("invalid cluster spec: must be an object")
    return spec


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    kubernetes_version: str = ""


def version_in(text: str) -> str:
    """The version in an encoded spec that nothing vouches for; empty if it has none.

    Only this field is decoded: a few bytes may have a million values.
    """
    content = _unpacked(text) or b""
    try:
        return msgspec.json.decode(content, type=_Version).kubernetes_version
    except (ValueError, RecursionError):
        return ""


def digest(spec: Object) -> str:
    """Return the digest stored in `status.appliedDigest`: of a control plane's spec without the fields the planner
    writes.
    """
    own = {part: value for part, value in spec.items() if part != "controlPlaneEndpoint"}
    return hashlib.sha256(msgspec.json.encode(own, order="sorted")).hexdigest()


def is_control_plane_current(cluster: Object, control_plane: Object) -> bool:
    """Whether the control plane reflects the current spec of the cluster."""
    annotations = control_plane["metadata"].get("annotations") or {}
    current = control_plane.get("spec") or {}
    if any(request_of_cluster(cluster, kind) != request_in(current, kind) for kind in operations.KINDS):
        return False
    text, content = annotations.get(CLUSTER_SPEC, ""), _content(cluster["spec"])
    try:
        return _unpacked(text) == content or decode_spec(text) == msgspec.json.decode(content)
    except ValueError:
        return False


def was_applied(control_plane: Object | None) -> bool:
    """Whether all machines had any spec of the control plane applied once: from then on, the cluster was ready."""
    return bool(((control_plane or {}).get("status") or {}).get("appliedSpec"))


def is_applied(control_plane: Object) -> bool:
    """Whether all machines have the current spec of the control plane applied."""
    return bool((control_plane.get("status") or {}).get("appliedDigest") == digest(control_plane["spec"]))
