"""last-applied-configuration annotation of client-side `kubectl apply`, and its role in server-side apply.

It is only used for kubectl's field manager.
"""

from __future__ import annotations

from typing import Any

import msgspec

from herder.engine.meta.kinds import Object

KUBECTL = "kubectl"
ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"
_MAX_ANNOTATION_BYTES = 256 * 1024
_HTML = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def configuration(obj: Object, api_version: str) -> Object | None:
    """Return what kubectl last applied on the client side, if it has this version and can be decoded."""
    annotations = (obj.get("metadata") or {}).get("annotations") or {}
    text = annotations.get(ANNOTATION)
    if not text:
        return None
    try:
        last: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(last, dict) or not last.get("kind") or last.get("apiVersion") != api_version:
        return None
    return last


def refresh(metadata: Object, applied: Object) -> None:
    """Update the annotation if the object has one, so that returning to client-side apply works."""
    annotations = dict(metadata.get("annotations") or {})
    if not annotations.get(ANNOTATION):
        return
    annotations[ANNOTATION] = _encode(applied)
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > _MAX_ANNOTATION_BYTES:
        del annotations[ANNOTATION]
    metadata["annotations"] = annotations


def _encode(applied: Object) -> str:
    metadata = applied.get("metadata") or {}
    annotations = metadata.get("annotations")
    if annotations and ANNOTATION in annotations:
        rest = {key: value for key, value in annotations.items() if key != ANNOTATION}
        metadata = {**metadata, "annotations": rest}
        if not rest:
            del metadata["annotations"]
        applied = {**applied, "metadata": metadata}
    text = msgspec.json.encode(applied, order="sorted").decode()
    for character, escape in _HTML.items():
        text = text.replace(character, escape)
    return text + "\n"
