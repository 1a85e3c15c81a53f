"""Who did what and when: one JSON line for each finished request, at the level Metadata.

Bodies are never recorded, so no secret can be in them; what looks like a credential in a query string is blanked, and
of addresses that are not the API's only the beginning is told. The event loop only hands over what it knows: putting it
into words and onto the disk is a thread's work, and a full disk stops the record, not the server (which says so in its
log).
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
from herder.engine.client.wire import Query, Request, User, loggable_path
from herder.engine.meta.kinds import Object

logger = logging.getLogger(__name__)

_MOST_WAITING = 50_000
_EVERY_SECONDS = 0.25
_STRETCH = 32
_BREATH_SECONDS = 0.001
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._~-]*").fullmatch
_LONGEST_URI, _MOST_ITEMS, _LONGEST_NAME = 4096, 64, 1024
"""Long addresses are cut: a client without credentials could push what others did out of the files with them."""
_CREDENTIALS = ("token", "secret", "password", "authorization", "credential", "signature", "code")


class AuditRecord(msgspec.Struct, frozen=True, gc=False):
    """One finished request, as the server knows it: never its body, nor headers that could hold a secret."""

    audit_id: str  # also the Audit-ID header of the answer
    path: str
    query: Query
    remote: str
    agent: str
    attributes: AccessAttributes
    user: User
    received: datetime
    completed: datetime
    code: int
    impersonated: User | None = None
    status: Object | None = None  # the Status that was answered, for a failed request
    annotations: dict[str, str] = {}


def finished(
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
    agent = request.headers.get("user-agent", "")
    return AuditRecord(
        audit_id,
        request.path,
        request.query,
        request.remote,
        agent[:1024],
        attributes,
        user,
        received,
        completed,
        code,
        impersonated,
        status,
    )


class AuditLog:
    """A file that grows to `max_bytes`, then becomes `<name>.1`; `backups` old ones are kept."""

    def __init__(self, path: Path, *, max_bytes: int = 100 << 20, backups: int = 10) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._backups = backups
        self._waiting: deque[AuditRecord] = deque()
        self._lost = 0
        self._closing = threading.Event()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def record(self, record: AuditRecord) -> None:
        """Hand over one event; never waits for the disk."""
        # Nobody is woken: a thread that woke for each request would take the interpreter from the loop each time.
        if len(self._waiting) >= _MOST_WAITING:
            self._lost += 1
        else:
            self._waiting.append(record)

    def close(self) -> None:
        """Write what is left and stop. Waits for the thread, so not for the event loop to call while serving."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            closing = self._closing.wait(_EVERY_SECONDS)
            batch = [self._waiting.popleft() for _ in range(len(self._waiting))]
            lost, self._lost = self._lost, 0
            if lost:
                logger.error("audit: %d events were lost, because the disk was too slow", lost)
            if batch:
                self._write(b"".join(self._lines(batch)))
            if closing:
                return

    def _lines(self, batch: list[AuditRecord]) -> Iterator[bytes]:
        """In short stretches: while this thread works, requests wait for the interpreter."""
        for number, record in enumerate(batch, 1):
            yield msgspec.json.encode(event_of(record)) + b"\n"
            if number % _STRETCH == 0:
                self._closing.wait(_BREATH_SECONDS)

    def _write(self, lines: bytes) -> None:
        try:
            if self._path.exists() and self._path.stat().st_size + len(lines) > self._max_bytes:
                self._rotate()
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "ab") as out:
                out.write(lines)
        except OSError as error:
            logger.error("audit: cannot write %s: %s", self._path, error)

    def _rotate(self) -> None:
        for number in range(self._backups - 1, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            if older.exists():
                older.replace(self._path.with_name(f"{self._path.name}.{number + 1}"))
        self._path.replace(self._path.with_name(f"{self._path.name}.1"))


def event_of(record: AuditRecord) -> Object:
    """The audit.k8s.io/v1 Event of a finished request."""
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
    if record.agent:
        event["userAgent"] = record.agent
    if record.attributes.resource:
        event["objectRef"] = _object_reference(record.attributes)
    event["responseStatus"] = _response_status(record)
    event["requestReceivedTimestamp"] = _micro(record.received)
    event["stageTimestamp"] = _micro(record.completed)
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
    return {key: value[:_LONGEST_NAME] for key, value in named if value}


def _response_status(record: AuditRecord) -> Object:
    status: dict[str, Any] = {"metadata": {}}
    for key in ("status", "reason"):  # not the message: it may repeat what the caller sent
        if record.status and record.status.get(key):
            status[key] = record.status[key]
    return status | {"code": record.code}


def _uri(path: str, query: Query) -> str:
    path = loggable_path(path)[:_LONGEST_URI]
    if not _PLAIN_PATH(path):
        path = quote(path, safe="/:@!$&'()*+,;=~")
    if not query.items:
        return path[:_LONGEST_URI]
    items = [(name[:_LONGEST_URI], _blanked(name, value)[:_LONGEST_URI]) for name, value in query.items[:_MOST_ITEMS]]
    return f"{path}?{Query(items)}"[:_LONGEST_URI]


def _blanked(name: str, value: str) -> str:
    return "REDACTED" if any(word in name.lower() for word in _CREDENTIALS) else value


def _micro(when: datetime) -> str:
    return when.astimezone(UTC).isoformat(timespec="microseconds")[:26] + "Z"
