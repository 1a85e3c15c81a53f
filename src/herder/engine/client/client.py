"""Kubernetes API client over any `Transport`, with plain dictionaries as objects.

The client knows kinds only as the resources it is given. Responses are decoded for each caller, so callers may modify
them. Failures raise the `StatusError` subclasses that the server uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from herder.engine.meta.errors import Expired, ServiceUnavailable, StatusError, TooManyRequests
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.engine.meta.printable import printable
from herder.engine.wire import MAX_RESPONSE_BYTES, Query, Request, Response, ResponseTooLarge, Transport

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

READ_ATTEMPTS = 5
MAX_RETRY_AFTER_SECONDS = 10
RESPONSE_SECONDS = 70.0
"""Time limit for a response that is not a watch: a server may send it byte by byte."""
MAX_EMPTY_PAGES = 100
"""Maximum pages without an object in a list with `max_items`."""
OVER_BUDGET = "all observed clusters together hold as much as they may, and this one the most of them"
YIELD_EVERY = 500
"""Objects of one page that are processed between two yields to the event loop."""
EVENT_BYTES = 16 << 20
"""Maximum size of a watch event: several times the largest object that etcd is configured to accept."""

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list, or a complete list."""

    items: list[Object]
    resource_version: str
    continue_token: str = ""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One event of a watch."""

    type: str  # ADDED, MODIFIED, DELETED or BOOKMARK; errors are raised
    object: Object


class Client:
    """Client for one API server."""

    def __init__(self, transport: Transport, *, field_manager: str = "herder") -> None:
        self.transport = transport
        self.field_manager = field_manager

    async def close(self) -> None:
        await self.transport.close()

    # --- reads --------------------------------------------------------------------------------------------------

    async def get(
        self, resource: GroupVersionResource, name: str, *, namespace: str = "", subresource: str = ""
    ) -> Object:
        return await self._object("GET", resource.path(namespace, name, subresource))

    async def list(
        self,
        resource: GroupVersionResource,
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        limit: int = 0,
        continue_token: str = "",
        resource_version: str = "",
        metadata_only: bool = False,
    ) -> Page:
        """Return one page; items carry apiVersion and kind even if the server sets them only on the list."""
        query = _query(
            labelSelector=labels,
            fieldSelector=fields,
            limit=str(limit) if limit else "",
            resourceVersion=resource_version,
        )
        if continue_token:
            query.items.append(("continue", continue_token))
        accept = _ACCEPT_METADATA_LIST if metadata_only else _ACCEPT
        found = await self._object("GET", resource.path(namespace), query, accept=accept)
        meta, items = found.get("metadata") or {}, found.get("items") or []
        if not (isinstance(meta, dict) and isinstance(items, list) and all(map(_is_object, items))):
            raise ServiceUnavailable(f"{resource.path(namespace)}: response is not a Kubernetes list")
        kind = str(found.get("kind", "")).removesuffix("List")
        for item in items:
            item.setdefault("apiVersion", found.get("apiVersion"))
            item.setdefault("kind", kind)
        return Page(items, str(meta.get("resourceVersion", "")), str(meta.get("continue", "")))

    async def list_all(
        self,
        resource: GroupVersionResource,
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        page_size: int = 500,
        metadata_only: bool = False,
        transform: Callable[[Object], Object] = lambda obj: obj,
        max_items: int = 0,
        max_bytes: int = 0,
        claim: Callable[[int], bool] = lambda _size: True,
    ) -> Page:
        """Return all pages of one consistent list; in a single request if the continue token expires.

        `transform` reduces each object as it arrives. The list fails if the server sends more than `max_items` objects,
        or if the transformed objects exceed `max_bytes` or what `claim` grants.
        """
        items: list[Object] = []
        size = 0
        token = ""
        empty = 0
        while True:
            try:
                page = await self.list(
                    resource,
                    namespace=namespace,
                    labels=labels,
                    fields=fields,
                    limit=page_size,
                    continue_token=token,
                    metadata_only=metadata_only,
                )
            except ResponseTooLarge:
                if page_size <= 1:
                    raise
                page_size = max(page_size // 10, 1)
                continue
            except Expired:
                if not token:
                    raise
                page = await self.list(
                    resource, namespace=namespace, labels=labels, fields=fields, metadata_only=metadata_only
                )
                items, size = [], 0
                page = replace(page, continue_token="")  # a list without a limit is complete
            for number, item in enumerate(page.items, 1):
                items.append(transform(item))
                size += len(_encode(items[-1])) if max_bytes else 0
                if not number % YIELD_EVERY:  # a server that ignores `limit` sends large pages
                    await asyncio.sleep(0)
            empty += not page.items
            if max_items and (len(items) > max_items or empty > MAX_EMPTY_PAGES):
                raise ServiceUnavailable(
                    f"{resource.path(namespace)}: more than {max_items} objects, or too many empty pages"
                )
            if max_bytes and size > max_bytes:
                raise ServiceUnavailable(f"{resource.path(namespace)}: more than {max_bytes} bytes")
            if max_bytes and not claim(size):
                raise ServiceUnavailable(OVER_BUDGET)
            token = page.continue_token
            if not token:
                return Page(items, page.resource_version)
            await asyncio.sleep(0)  # an in-process server responds without yielding

    async def watch(
        self,
        resource: GroupVersionResource,
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        resource_version: str = "",
        initial_events: bool = False,
        timeout_seconds: int = 0,
        opened: Callable[[], None] | None = None,
        metadata_only: bool = False,
        media_type: str = "",
    ) -> AsyncGenerator[WatchEvent, None]:
        """Watch until the server ends the stream. Raises `Expired` if `resource_version` is too old.

        With a `media_type`, such as that of tables, the objects of events are in that form.

        `opened` is called when the server accepts the watch, which may be long before the first event. Callers that
        stop early must close the generator (`aclosing`) to release the connection.
        """
        query = _query(
            watch="true",
            allowWatchBookmarks="true",
            labelSelector=labels,
            fieldSelector=fields,
            resourceVersion=resource_version,
            timeoutSeconds=str(timeout_seconds) if timeout_seconds else "",
        )
        if initial_events:
            query.items += [("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")]
        accept = {"accept": media_type} if media_type else _ACCEPT_METADATA if metadata_only else _ACCEPT
        response = await self.transport.send(Request("GET", resource.path(namespace), query, accept))
        if response.status >= 400:
            raise await _failure(response)
        if opened is not None:
            opened()
        async with aclosing(_documents(response)) as documents:
            async for document in documents:
                event = _event(document)
                if event.type == "ERROR":
                    error = StatusError.from_status(event.object, StatusError.code)
                    raise Expired(error.message, details=error.details) if error.code == 410 else error
                yield event

    # --- writes -------------------------------------------------------------------------------------------------

    async def create(
        self,
        resource: GroupVersionResource,
        obj: Object,
        *,
        namespace: str = "",
        name: str = "",
        subresource: str = "",
        dry_run: bool = False,
    ) -> Object:
        """Create an object, or a subresource of `name` (token, eviction, binding)."""
        return await self._object(
            "POST", resource.path(namespace, name, subresource), self._write_query(dry_run), _encode(obj)
        )

    async def update(
        self, resource: GroupVersionResource, obj: Object, *, subresource: str = "", dry_run: bool = False
    ) -> Object:
        meta = obj["metadata"]
        path = resource.path(meta.get("namespace", ""), meta["name"], subresource)
        return await self._object("PUT", path, self._write_query(dry_run), _encode(obj))

    async def patch(
        self,
        resource: GroupVersionResource,
        name: str,
        patch: Any,
        *,
        namespace: str = "",
        content_type: str = MERGE_PATCH,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Object:
        path = resource.path(namespace, name, subresource)
        return await self._object("PATCH", path, self._write_query(dry_run), _encode(patch), content_type)

    async def apply(
        self,
        resource: GroupVersionResource,
        obj: Object,
        *,
        field_manager: str = "",
        force: bool = True,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Object:
        """Server-side apply."""
        meta = obj["metadata"]
        query = self._write_query(dry_run, field_manager)
        if force:
            query.items.append(("force", "true"))
        path = resource.path(meta.get("namespace", ""), meta["name"], subresource)
        return await self._object("PATCH", path, query, _encode(obj), APPLY_PATCH)

    async def delete(
        self,
        resource: GroupVersionResource,
        name: str,
        *,
        namespace: str = "",
        propagation: str = "Background",
        uid: str = "",
        resource_version: str = "",
        grace_seconds: int | None = None,
        dry_run: bool = False,
    ) -> Object:
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        if uid or resource_version:
            options["preconditions"] = {key: value for key, value in preconditions.items() if value}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        query = Query([("dryRun", "All")] if dry_run else [])
        return await self._object("DELETE", resource.path(namespace, name), query, _encode(options))

    # --- other requests -----------------------------------------------------------------------------------------

    async def document(self, path: str) -> Object:
        """Get a JSON document that is not a resource: discovery, version."""
        return await self._object("GET", path)

    async def text(self, path: str, query: Query | None = None) -> str:
        """Get plain text, such as a log."""
        response = await self.raw("GET", path, query)
        if response.status >= 400:
            raise await _failure(response)
        return (await _content(response)).decode(errors="replace")

    async def raw(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        *,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
    ) -> Response:
        """Send any request and return the uninterpreted response."""
        return await self.transport.send(Request(method, path, query or Query(), headers or {}, body))

    def _write_query(self, dry_run: bool, field_manager: str = "") -> Query:
        return _query(fieldManager=field_manager or self.field_manager, dryRun="All" if dry_run else "")

    async def _object(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: bytes = b"",
        content_type: str = "application/json",
        accept: dict[str, str] | None = None,
    ) -> Object:
        headers = {**_ACCEPT, "content-type": content_type} if body else accept or _ACCEPT
        response = await self._send(Request(method, path, query or Query(), headers, body))
        if response.status >= 400:
            raise await _failure(response)
        content = await _content(response)
        try:
            decoded = _decode(content)
        except _UNREADABLE:
            decoded = None
        if not isinstance(decoded, dict):
            raise ServiceUnavailable(f"{path}: response is not a Kubernetes object: {_excerpt(content)}")
        return decoded

    async def _send(self, request: Request) -> Response:
        """Send a request; retry reads that get 429 with Retry-After, as all clients do. A new kind is not served
        immediately."""
        response = await self.transport.send(request)
        for _ in range(READ_ATTEMPTS - 1):
            wait = response.headers.get("retry-after", "")
            if request.method != "GET" or response.status != TooManyRequests.code or not wait.isdecimal():
                break
            await asyncio.sleep(min(int(wait[:_MAX_DIGITS]), MAX_RETRY_AFTER_SECONDS))
            response = await self.transport.send(request)
        return response


_UNREADABLE = (ValueError, RecursionError)  # not JSON, not UTF-8, or nested too deeply
_MAX_DIGITS = 9
_EXCERPT_BYTES = 2000
_ACCEPT = {"accept": "application/json"}
_METADATA = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"
_ACCEPT_METADATA = {"accept": _METADATA.format("")}
_ACCEPT_METADATA_LIST = {"accept": _METADATA.format("List")}


def _query(**parameters: str) -> Query:
    return Query([(name, value) for name, value in parameters.items() if value])


def _is_object(item: object) -> bool:
    return isinstance(item, dict) and isinstance(item.get("metadata", {}), dict)


async def _content(response: Response) -> bytes:
    if response.stream is None:
        return response.content()
    try:
        async with asyncio.timeout(RESPONSE_SECONDS):
            return await _read_stream(response.stream)
    except TimeoutError:
        raise ServiceUnavailable(f"response did not end within {RESPONSE_SECONDS:.0f} s") from None
    finally:
        await _close_stream(response.stream)


async def _read_stream(stream: AsyncIterator[bytes]) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in stream:
        pieces.append(piece)
        size += len(piece)
        if size > MAX_RESPONSE_BYTES:
            raise ResponseTooLarge(f"response exceeds {MAX_RESPONSE_BYTES} bytes")
    return b"".join(pieces)


async def _failure(response: Response) -> StatusError:
    content = await _content(response)
    try:
        status = _decode(content)
    except _UNREADABLE:
        status = None
    if not isinstance(status, dict) or status.get("kind") != "Status":
        # A proxy between us and the API server responded: include an excerpt.
        status = {"message": _excerpt(content) or f"server responded with HTTP {response.status}"}
    return StatusError.from_status(status, response.status)


def _excerpt(content: bytes) -> str:
    return printable(content[:_EXCERPT_BYTES].decode(errors="replace").strip(), 300)


def _event(document: bytes) -> WatchEvent:
    try:
        event = _decode(document)
        kind, obj = event["type"], event["object"]
        if not isinstance(obj["metadata"] if kind != "ERROR" else obj, dict):
            raise TypeError
    except (*_UNREADABLE, KeyError, TypeError):
        raise ServiceUnavailable(f"watch event is invalid: {_excerpt(document)}") from None
    return WatchEvent(kind, obj)


async def _documents(response: Response) -> AsyncGenerator[bytes, None]:
    """Split a stream into JSON documents, regardless of chunk boundaries; drop a truncated last one."""
    if response.stream is None:
        for line in response.content().splitlines():
            yield line
        return
    stream, splitter = response.stream, _Splitter()
    try:
        async for chunk in stream:
            for document in splitter.feed(chunk):
                if document:
                    yield document
    finally:
        await _close_stream(stream)


class _Splitter:
    """Incremental splitter. An incomplete document is bounded in size and scanned only once."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        if not self._buffer:
            documents, rest = _split(chunk)
            self._keep_rest(rest)
            return documents
        self._buffer += chunk
        # The delimiter may span two chunks: scan the last byte again.
        end = b"\n}" if self._buffer.startswith(b"{\n") else b"\n"
        found = self._buffer.find(end, self._searched)
        if found < 0:
            self._searched = len(self._buffer) - 1
            self._check()
            return []
        documents, rest = _split(bytes(self._buffer))
        self._buffer.clear()
        self._keep_rest(rest)
        return documents

    def _keep_rest(self, rest: bytes) -> None:
        self._buffer += rest
        self._searched = max(len(rest) - 1, 0)
        self._check()

    def _check(self) -> None:
        if len(self._buffer) > EVENT_BYTES:
            raise ResponseTooLarge(f"watch event exceeds {EVENT_BYTES} bytes")


def _split(text: bytes) -> tuple[list[bytes], bytes]:
    """Return complete documents and the rest.

    Servers write one document per line. Some indent them without a separator; then a brace at the start of a line ends
    one.
    """
    if not text.startswith(b"{\n"):
        *lines, rest = text.split(b"\n")
        return lines, rest
    *documents, rest = text.split(b"\n}")
    return [document.lstrip() + b"\n}" for document in documents], rest.lstrip()


async def _close_stream(stream: AsyncIterator[bytes]) -> None:
    close: Any = getattr(stream, "aclose", None)  # generators and other streams that hold resources
    if close is not None:
        await close()
