"""Read-only OCI registry for the images that machines install from.

The images are public, so no authentication is required.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from herder.engine.wire import Request, Response
from herder.gateway.registry.archives import Archives
from herder.oci import MANIFEST, digest_of

PREFIX = "/v2/"
_PATH = re.compile(r"/v2/(?P<name>[a-z0-9._/-]{1,255})/(?P<what>manifests|blobs)/(?P<reference>[A-Za-z0-9._:-]{1,200})")


class Blob(Protocol):
    @property
    def size(self) -> int: ...

    def chunks(self) -> AsyncIterator[bytes]: ...


class Source(Protocol):
    """One repository of images."""

    @property
    def repository(self) -> str: ...

    async def manifest(self, reference: str) -> bytes | None: ...

    def blob(self, digest: str) -> Blob | None: ...


class Images:
    """Serves images that are built here and images from archives."""

    def __init__(self, sources: Sequence[Source], archives: Archives | None = None) -> None:
        self._sources = {source.repository: source for source in sources}
        self._archives = archives

    async def handle(self, request: Request) -> Response | None:
        """Return None if the request is not for the registry."""
        if not request.path.startswith(PREFIX):
            return None
        if request.method not in {"GET", "HEAD"}:
            return _refused(405, "UNSUPPORTED", "this registry is read-only")
        if request.path == PREFIX:
            return Response(200, {"content-type": "application/json"}, b"{}")
        match = _PATH.fullmatch(request.path)
        source = await self._source(match["name"]) if match else None
        if match is None or source is None:
            return _refused(404, "NAME_UNKNOWN", "repository not found")
        if match["what"] == "manifests":
            return await self._manifest(source, match["reference"])
        return self._blob(source, match["reference"], request)

    async def _source(self, name: str) -> Source | None:
        if name in self._sources:
            return self._sources[name]
        return await self._archives.repository(name) if self._archives is not None else None

    async def _manifest(self, source: Source, reference: str) -> Response:
        content = await source.manifest(reference)
        if content is None:
            return _refused(404, "MANIFEST_UNKNOWN", f"{reference}: manifest not found")
        headers = {"content-type": MANIFEST, "docker-content-digest": digest_of(content)}
        # For HEAD the server sends only the length, which container runtimes need.
        return Response(200, headers, content)

    def _blob(self, source: Source, digest: str, request: Request) -> Response:
        blob = source.blob(digest)
        if blob is None:
            return _refused(404, "BLOB_UNKNOWN", "blob not found")
        headers = {"content-type": "application/octet-stream", "docker-content-digest": digest}
        if request.method == "HEAD":
            return Response(200, headers)
        return Response(200, headers, stream=blob.chunks())


def _refused(status: int, code: str, message: str) -> Response:
    body = {"errors": [{"code": code, "message": message}]}
    return Response(status, {"content-type": "application/json"}, msgspec.json.encode(body))
