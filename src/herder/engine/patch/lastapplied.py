"""The annotation in which client-side `kubectl apply` keeps what it last sent, and how server-side apply honours it.

Only for the manager that kubectl uses: who applies under another name has nothing to do with the annotation.
"""

from __future__ import annotations

from typing import Any

import msgspec

from herder.engine.meta.kinds import Object

KUBECTL = "kubectl"
ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"
_ANNOTATIONS_AT_MOST = 256 * 1024
_HTML = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def configuration(obj: Object, api_version: str) -> Object | None:
    """What kubectl last applied from the client's side, if it was in this version and can be read."""
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
    """Bring the annotation up to date where the object has one, so that going back to client-side apply works."""
    annotations = dict(metadata.get("annotations") or {})
    if not annotations.get(ANNOTATION):
        return
    annotations[ANNOTATION] = _encoded(applied)
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > _ANNOTATIONS_AT_MOST:
        del annotations[ANNOTATION]
    metadata["annotations"] = annotations


def _encoded(applied: Object) -> str:
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
