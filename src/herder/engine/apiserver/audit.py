"""Audit log: one audit.k8s.io/v1 Event at level Metadata per finished request, as JSON lines in a rotated file.

Request and response bodies are never recorded. Query parameters that look like credentials are redacted, and URLs
outside the Kubernetes API are truncated to their first segment. The event loop only queues records; a thread encodes
and writes them. If the disk is full or too slow, events are lost (and an error is logged), but the server keeps
serving.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from herder.engine.apiserver.auth.access import AccessAttributes
from herder.engine.apiserver.auth.users import user_info
from herder.engine.meta.kinds import Object
from herder.engine.wire import Query, Request, User, loggable_path

logger = logging.getLogger(__name__)

_MAX_QUEUED = 50_000
_FLUSH_SECONDS = 0.25
_ENCODE_BATCH = 32
_PAUSE_SECONDS = 0.001
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._~-]*").fullmatch
_MAX_URI, _MAX_PARAMETERS, _MAX_NAME = 4096, 64, 1024
"""Limits on recorded URLs: without them a client without credentials could rotate other users' events out of the
files."""
_CREDENTIALS = ("token", "secret", "password", "authorization", "credential", "signature", "code")


class AuditRecord(msgspec.Struct, frozen=True, gc=False):
    """One finished request. It never contains the body, nor a header that could hold a secret."""

    audit_id: str  # also the Audit-ID header of the response
    path: str
    query: Query
    remote: str
    user_agent: str
    attributes: AccessAttributes
    user: User
    received: datetime
    completed: datetime
    code: int
    impersonated: User | None = None
    status: Object | None = None  # the Status that a failed request was answered with
    annotations: dict[str, str] = {}


def audit_record(
    request: Request,
    attributes: AccessAttributes,
    user: User,
    *,
    audit_id: str,
    received: datetime,
    completed: datetime,
    code: int,
    impersonated: User | None = None,
    status: Object | None = None,
) -> AuditRecord:
    """Build the audit record of a finished request."""
    user_agent = request.headers.get("user-agent", "")
    return AuditRecord(
        audit_id,
        request.path,
        request.query,
        request.remote,
        user_agent[:1024],
        attributes,
        user,
        received,
        completed,
        code,
        impersonated,
        status,
    )


class AuditLog:
    """The audit log file. At `max_bytes` it is renamed to `<name>.1`; `backups` renamed files are kept."""

    def __init__(self, path: Path, *, max_bytes: int = 100 << 20, backups: int = 10) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._backups = backups
        self._queue: deque[AuditRecord] = deque()
        self._dropped = 0
        self._closing = threading.Event()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def record(self, record: AuditRecord) -> None:
        """Queue one record. Never blocks on the disk."""
        # The writer thread polls instead of being woken: waking it for every request would contend for the GIL each
        # time.
        if len(self._queue) >= _MAX_QUEUED:
            self._dropped += 1
        else:
            self._queue.append(record)

    def close(self) -> None:
        """Write the remaining records and stop. Blocks until the writer thread has ended; do not call it on a busy
        event loop."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            closing = self._closing.wait(_FLUSH_SECONDS)
            batch = [self._queue.popleft() for _ in range(len(self._queue))]
            dropped, self._dropped = self._dropped, 0
            if dropped:
                logger.error("audit log: dropped %d events; the disk is too slow", dropped)
            if batch:
                self._write(b"".join(self._encoded_lines(batch)))
            if closing:
                return

    def _encoded_lines(self, batch: list[AuditRecord]) -> Iterator[bytes]:
        """Encode records, pausing every few of them: while this thread runs, requests wait for the GIL."""
        for number, record in enumerate(batch, 1):
            yield msgspec.json.encode(audit_event(record)) + b"\n"
            if number % _ENCODE_BATCH == 0:
                self._closing.wait(_PAUSE_SECONDS)

    def _write(self, lines: bytes) -> None:
        try:
            if self._path.exists() and self._path.stat().st_size + len(lines) > self._max_bytes:
                self._rotate()
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "ab") as out:
                out.write(lines)
        except OSError as error:
            logger.error("audit log: cannot write %s: %s", self._path, error)

    def _rotate(self) -> None:
        for number in range(self._backups - 1, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            if older.exists():
                older.replace(self._path.with_name(f"{self._path.name}.{number + 1}"))
        self._path.replace(self._path.with_name(f"{self._path.name}.1"))


def audit_event(record: AuditRecord) -> Object:
    """Convert a record to an audit.k8s.io/v1 Event."""
    event: Object = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "auditID": record.audit_id,
        "stage": "ResponseComplete",
        "requestURI": _uri(record.path, record.query),
        "verb": record.attributes.verb,
        "user": user_info(record.user),
    }
    if record.impersonated is not None:
        event["impersonatedUser"] = user_info(record.impersonated)
    if record.remote:
        event["sourceIPs"] = [record.remote]
    if record.user_agent:
        event["userAgent"] = record.user_agent
    if record.attributes.resource:
        event["objectRef"] = _object_reference(record.attributes)
    event["responseStatus"] = _response_status(record)
    event["requestReceivedTimestamp"] = _micro_time(record.received)
    event["stageTimestamp"] = _micro_time(record.completed)
    if record.annotations:
        event["annotations"] = record.annotations
    return event


def _object_reference(attributes: AccessAttributes) -> Object:
    named = (
        ("resource", attributes.resource),
        ("namespace", attributes.namespace),
        ("name", attributes.name),
        ("apiGroup", attributes.group),
        ("apiVersion", attributes.version),
        ("subresource", attributes.subresource),
    )
    return {key: value[:_MAX_NAME] for key, value in named if value}


def _response_status(record: AuditRecord) -> Object:
    status: dict[str, Any] = {"metadata": {}}
    for key in ("status", "reason"):  # without the message: it may quote the request body
        if record.status and record.status.get(key):
            status[key] = record.status[key]
    return status | {"code": record.code}


def _uri(path: str, query: Query) -> str:
    path = loggable_path(path)[:_MAX_URI]
    if not _PLAIN_PATH(path):
        path = quote(path, safe="/:@!$&'()*+,;=~")
    if not query.items:
        return path[:_MAX_URI]
    items = [(name[:_MAX_URI], _redacted(name, value)[:_MAX_URI]) for name, value in query.items[:_MAX_PARAMETERS]]
    return f"{path}?{Query(items)}"[:_MAX_URI]


def _redacted(name: str, value: str) -> str:
    return "REDACTED" if any(word in name.lower() for word in _CREDENTIALS) else value


def _micro_time(when: datetime) -> str:
    return when.astimezone(UTC).isoformat(timespec="microseconds")[:26] + "Z"
