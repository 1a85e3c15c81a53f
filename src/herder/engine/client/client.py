"""The Kubernetes API as Python calls: one interface over any `Transport`, plain objects in and out.

A `Client` knows nothing of kinds beyond the resource it is told. Answers are decoded afresh for each caller, so
nobody shares what another may change. Failures raise the same `StatusError` classes that the server raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from herder.engine.client.wire import ANSWER_BYTES, AnswerTooLong, Query, Request, Response, Transport
from herder.engine.meta.errors import Expired, ServiceUnavailable, StatusError, TooManyRequests
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.engine.meta.printable import printable

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

READ_TRIES = 5
LONGEST_WAIT_SECONDS = 10
ANSWER_SECONDS = 70.0
"""Until an answer that is not a watch must have ended: a server may send it byte by byte."""
MOST_EMPTY_PAGES = 100
"""Pages without an object that a server may send in one list where their number is bounded."""
KEPT_AT_ONCE = 500
"""Objects of one page, between two turns of the event loop."""
EVENT_BYTES = 16 << 20
"""Of one event of a watch: several times the largest object that any etcd is set up to take."""

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Page:
    items: list[Object]
    resource_version: str
    continue_token: str = ""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    type: str  # ADDED, MODIFIED, DELETED or BOOKMARK; errors are raised
    object: Object


class Client:
    def __init__(self, transport: Transport, *, field_manager: str = "herder") -> None:
        self.transport = transport
        self.field_manager = field_manager

    async def close(self) -> None:
        await self.transport.close()

    # --- reading ------------------------------------------------------------------------------------------------

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
        """One page; items carry apiVersion and kind even where the server leaves them to the list."""
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
            raise ServiceUnavailable(f"{resource.path(namespace)}: the answer is not a list of the Kubernetes API")
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
        keep: Callable[[Object], Object] = lambda obj: obj,
        most_items: int = 0,
        most_bytes: int = 0,
    ) -> Page:
        """Every page of one consistent list; in one piece where the server forgets it between two pages.

        Of each object only what `keep` makes of it is held while the rest comes. A server that sends more than
        `most_items`, or of which more than `most_bytes` would be held, is not listed any further.
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
            except AnswerTooLong:
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
                page = replace(page, continue_token="")  # a list without a limit is in one piece
            for number, item in enumerate(page.items, 1):
                items.append(keep(item))
                size += len(_encode(items[-1])) if most_bytes else 0
                if not number % KEPT_AT_ONCE:  # a page of a server that does not know limits
                    await asyncio.sleep(0)
            empty += not page.items
            if most_items and (len(items) > most_items or empty > MOST_EMPTY_PAGES):
                raise ServiceUnavailable(f"{resource.path(namespace)}: more than {most_items} objects, or empty pages")
            if most_bytes and size > most_bytes:
                raise ServiceUnavailable(f"{resource.path(namespace)}: more than {most_bytes} bytes")
            token = page.continue_token
            if not token:
                return Page(items, page.resource_version)
            await asyncio.sleep(0)  # a server of this process answers without a pause

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
    ) -> AsyncGenerator[WatchEvent, None]:
        """Events until the server ends the stream. Raises `Expired` when `resource_version` is too old.

        `opened` is called once the server has accepted the watch, which may be long before the first event. Who does
        not read to the end closes the generator (`aclosing`), so that the connection goes at once.
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
        accept = _ACCEPT_METADATA if metadata_only else _ACCEPT
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

    # --- writing ------------------------------------------------------------------------------------------------

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
        """Create an object, or call a subresource of `name` that is created (token, eviction, binding)."""
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
        """Server-side apply: the object as its manager wants it, the server merges."""
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

    # --- the rest -----------------------------------------------------------------------------------------------

    async def document(self, path: str) -> Object:
        """What lies at a path that is not a resource's: discovery, versions."""
        return await self._object("GET", path)

    async def text(self, path: str, query: Query | None = None) -> str:
        """What lies at a path, where it is no object: a log."""
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
        """Any request; the answer is not interpreted."""
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
        response = await self._answer(Request(method, path, query or Query(), headers, body))
        if response.status >= 400:
            raise await _failure(response)
        content = await _content(response)
        try:
            decoded = _decode(content)
        except _UNREADABLE:
            decoded = None
        if not isinstance(decoded, dict):
            raise ServiceUnavailable(f"{path}: the answer is not an object of the Kubernetes API: {_excerpt(content)}")
        return decoded

    async def _answer(self, request: Request) -> Response:
        """Reads wait where the server asks for it, as with every client: a kind that is new is not ready at once."""
        response = await self.transport.send(request)
        for _ in range(READ_TRIES - 1):
            wait = response.headers.get("retry-after", "")
            if request.method != "GET" or response.status != TooManyRequests.code or not wait.isdecimal():
                break
            await asyncio.sleep(min(int(wait[:_MOST_DIGITS]), LONGEST_WAIT_SECONDS))
            response = await self.transport.send(request)
        return response


_UNREADABLE = (ValueError, RecursionError)  # no JSON, no UTF-8, or nested too deeply
_MOST_DIGITS = 9
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
        async with asyncio.timeout(ANSWER_SECONDS):
            return await _collected(response.stream)
    except TimeoutError:
        raise ServiceUnavailable(f"the answer did not end within {ANSWER_SECONDS:.0f} s") from None
    finally:
        await _closed(response.stream)


async def _collected(stream: AsyncIterator[bytes]) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in stream:
        pieces.append(piece)
        size += len(piece)
        if size > ANSWER_BYTES:
            raise AnswerTooLong(f"the answer is longer than {ANSWER_BYTES} bytes")
    return b"".join(pieces)


async def _failure(response: Response) -> StatusError:
    content = await _content(response)
    try:
        status = _decode(content)
    except _UNREADABLE:
        status = None
    if not isinstance(status, dict) or status.get("kind") != "Status":
        # Something between us and the API server answered: say what, briefly.
        status = {"message": _excerpt(content) or f"the server answered HTTP {response.status}"}
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
        raise ServiceUnavailable(f"the watch brought something that is no event: {_excerpt(document)}") from None
    return WatchEvent(kind, obj)


async def _documents(response: Response) -> AsyncGenerator[bytes, None]:
    """The JSON documents of a stream, however it was cut into chunks; a last one that was cut off is dropped."""
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
        await _closed(stream)


class _Splitter:
    """Cuts a stream into documents. What is held of one that has not ended is bounded, and looked at once."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._searched = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        if not self._held:
            documents, left = _split(chunk)
            self._hold(left)
            return documents
        self._held += chunk
        # The end of a document may be cut in two: the last byte is looked at again.
        end = b"\n}" if self._held.startswith(b"{\n") else b"\n"
        found = self._held.find(end, self._searched)
        if found < 0:
            self._searched = len(self._held) - 1
            self._check()
            return []
        documents, left = _split(bytes(self._held))
        self._held.clear()
        self._hold(left)
        return documents

    def _hold(self, left: bytes) -> None:
        self._held += left
        self._searched = max(len(left) - 1, 0)
        self._check()

    def _check(self) -> None:
        if len(self._held) > EVENT_BYTES:
            raise AnswerTooLong(f"the watch brought an event that is longer than {EVENT_BYTES} bytes")


def _split(text: bytes) -> tuple[list[bytes], bytes]:
    """Whole documents, and what is left. Servers write one a line; some indent them and put nothing in between, and
    then the only brace that ends one is the only one that begins a line."""
    if not text.startswith(b"{\n"):
        *lines, left = text.split(b"\n")
        return lines, left
    *documents, left = text.split(b"\n}")
    return [document.lstrip() + b"\n}" for document in documents], left.lstrip()


async def _closed(stream: AsyncIterator[bytes]) -> None:
    close: Any = getattr(stream, "aclose", None)  # generators have one, and other streams that hold something
    if close is not None:
        await close()
