"""Serve /openapi/v2 and /openapi/v3. Documents are built off the event loop and cached until the registry changes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from herder.engine.apiserver.request.negotiation import MAX_ACCEPT
from herder.engine.wire import Request, Response

if TYPE_CHECKING:
    from herder.engine.apiserver.registry.resources import Registry

_V2 = "application/com.github.proto-openapi.spec.v2"
_PROTOBUF = {f"{_V2}@v1.0+protobuf", f"{_V2}.v1.0+protobuf"}
_ANYTHING = {"", "*/*", "application/*"}


class OpenApi:
    """Handler of the OpenAPI endpoints."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._generation = -1
        self._documents: dict[str, bytes] = {}

    async def handle(self, request: Request) -> Response | None:
        """Return the response for a path under /openapi; None for other paths."""
        match request.path.rstrip("/").split("/", 3):
            case ["", "openapi", "v2"]:
                return await self._v2(request)
            case ["", "openapi", "v3"]:
                return Response(200, {"content-type": "application/json"}, await self._document("v3", self._index))
            case ["", "openapi", "v3", rest]:
                return await self._v3(request, rest)
            case _:
                return None

    # --- v3 ----------------------------------------------------------------------------------------------------

    def _index(self) -> bytes:
        from herder.engine.apiserver.openapi.v3 import document_hash, document_paths

        paths = {
            path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={document_hash(self._registry, served)}"}
            for path, served in document_paths(self._registry).items()
        }
        return msgspec.json.encode({"paths": paths})

    async def _v3(self, request: Request, path: str) -> Response:
        from herder.engine.apiserver.openapi.v3 import build_document, document_hash, document_paths

        served = document_paths(self._registry).get(path)
        if served is None:
            return Response(404)
        media_type = _accepted(request, {"application/json"})
        if not media_type:
            return Response(406)
        wanted, current = request.query.get("hash"), document_hash(self._registry, served)
        headers = {"content-type": "application/json", "etag": f'"{current}"', "vary": "Accept"}
        if wanted and wanted != current:
            return Response(301, headers | {"location": f"/openapi/v3/{path}?hash={current}"})
        if wanted:
            headers["cache-control"] = "public, immutable"
        if current in request.headers.get("if-none-match", ""):
            return Response(304, headers)

        def build() -> bytes:
            return msgspec.json.encode(build_document(self._registry, served))

        return Response(200, headers, await self._document(f"v3/{path}", build))

    # --- v2 ----------------------------------------------------------------------------------------------------

    async def _v2(self, request: Request) -> Response:
        media_type = _accepted(request, {"application/json"} | _PROTOBUF)
        if not media_type:
            return Response(406)
        protobuf = media_type in _PROTOBUF
        body = await self._document(
            "v2;protobuf" if protobuf else "v2", self._v2_protobuf if protobuf else self._v2_json
        )
        etag = f'"{hashlib.sha256(body).hexdigest().upper()}"'
        kind = f"{_V2}.v1.0+protobuf" if protobuf else "application/json"
        headers = {"content-type": kind, "etag": etag, "vary": "Accept"}
        if etag in request.headers.get("if-none-match", ""):
            return Response(304, headers)
        return Response(200, headers, body)

    def _v2_json(self) -> bytes:
        from herder.engine.apiserver.openapi.v2 import build_v2

        return msgspec.json.encode(build_v2(self._registry))

    def _v2_protobuf(self) -> bytes:
        from herder.engine.apiserver.openapi.v2 import build_v2
        from herder.engine.apiserver.openapi.v2_protobuf import encode_document

        return encode_document(build_v2(self._registry))

    # --- caching -----------------------------------------------------------------------------------------------

    async def _document(self, name: str, build: Callable[[], bytes]) -> bytes:
        generation = self._registry.generation
        if self._generation != generation:
            self._generation = generation
            self._documents = {}
        body = self._documents.get(name)
        if body is None:
            body = await asyncio.to_thread(build)
            if self._generation == generation:
                self._documents[name] = body
        return body


def _accepted(request: Request, offered: set[str]) -> str:
    """Return the first media type of the Accept header that is offered; empty if none is."""
    for clause in request.headers.get("accept", "")[:MAX_ACCEPT].split(","):
        wanted = clause.partition(";")[0].strip()
        if wanted in offered:
            return wanted
        if wanted in _ANYTHING:
            return "application/json"
    return ""
