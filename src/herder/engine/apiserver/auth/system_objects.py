"""Metadata and encoding of objects that the server creates itself, without a request."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime

from msgspec import json

from herder.engine.meta.kinds import Object


def object_encoder(obj: Object) -> Callable[[int], bytes]:
    """Return the encoder that the store writes `obj` with: it adds the resourceVersion."""

    def encode(revision: int) -> bytes:
        return json.encode(obj | {"metadata": obj["metadata"] | {"resourceVersion": str(revision)}})

    return encode


def new_metadata(metadata: Object, *, now: datetime, entropy: Callable[[int], bytes]) -> Object:
    """Return metadata of a new object, with uid and creationTimestamp."""
    return metadata | {
        "uid": str(uuid.UUID(bytes=entropy(16), version=4)),
        "creationTimestamp": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
