"""Objects that the server writes of its own accord, without a request."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime

from msgspec import json

from herder.engine.meta.kinds import Object


def stored(obj: Object) -> Callable[[int], bytes]:
    """What the store needs to write `obj`: its bytes, with the revision it is given inside."""

    def encode(revision: int) -> bytes:
        return json.encode(obj | {"metadata": obj["metadata"] | {"resourceVersion": str(revision)}})

    return encode


def born(metadata: Object, *, now: datetime, entropy: Callable[[int], bytes]) -> Object:
    """Metadata of a new object, with the fields that every object gets from the server."""
    return metadata | {
        "uid": str(uuid.UUID(bytes=entropy(16), version=4)),
        "creationTimestamp": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
