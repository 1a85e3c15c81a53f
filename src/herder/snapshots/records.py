"""The record of a snapshot: what `save` and `list` print, and the file of its metadata."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from herder.snapshots.names import seconds_of

LIMIT = 16 << 20  # more than the configuration, in which characters may be encoded shorter

SUCCESSFUL, FAILED = "successful", "failed"


@dataclass(frozen=True)
class Record:
    """`version` is that of the data: the storage version of etcd, or the schema of the store."""

    name: str
    node: str = ""
    location: str = ""
    created_at: int = 0
    size: int = 0
    sha256: str = ""
    revision: int = 0
    version: str = ""
    unpacked_size: int = 0
    status: str = SUCCESSFUL
    message: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)

    def at(self, location: str) -> Record:
        return replace(self, location=location)

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "nodeName": self.node,
            "location": self.location,
            "createdAt": _time(self.created_at),
            "size": self.size,
            "sha256": self.sha256,
            "revision": self.revision,
            "version": self.version,
            "unpackedSize": self.unpacked_size,
            "status": self.status,
            "message": self.message,
            "metadata": self.metadata,
        }

    def encoded(self) -> bytes:
        return json.dumps({**self.document(), "location": ""}, sort_keys=True).encode()


def found(name: str, size: int, location: str, kept: bytes | None) -> Record:
    """Return the record of an existing snapshot. `kept` is its metadata, if there is any.

    Files without valid metadata are listed too: a restore can verify the data itself.
    """
    seconds = seconds_of(name)
    unknown = Record(name, location=location, created_at=seconds, size=size)
    try:
        document = json.loads(kept) if kept is not None else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or document.get("name") != name:
        return replace(unknown, message="it has no metadata; its hash is unknown")
    record = replace(
        unknown,
        node=str(document.get("nodeName", "")),
        size=_number(document.get("size")),
        sha256=str(document.get("sha256", "")),
        revision=_number(document.get("revision")),
        version=str(document.get("version", "")),
        unpacked_size=_number(document.get("unpackedSize")),
        metadata=document["metadata"] if isinstance(document.get("metadata"), dict) else {},
    )
    if size != record.size:
        message = f"it has {size} bytes instead of {record.size}; it is truncated or corrupt"
        return replace(record, status=FAILED, message=message)
    return record


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
