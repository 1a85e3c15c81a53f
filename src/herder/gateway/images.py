"""The images that machines install from, where they are of our own making: a registry that can only be read.

What is in it is public, the programs that anybody can have from us, so nobody is asked who they are.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from herder.engine.client.wire import Request, Response
from herder.gateway.archives import Archives
from herder.oci import MANIFEST, digest_of

PREFIX = "/v2/"
_PATH = re.compile(r"/v2/(?P<name>[a-z0-9._/-]{1,255})/(?P<what>manifests|blobs)/(?P<reference>[A-Za-z0-9._:-]{1,200})")


class Blob(Protocol):
    @property
    def size(self) -> int: ...

    def pieces(self) -> AsyncIterator[bytes]: ...


class Source(Protocol):
    """One repository of images."""

    @property
    def repository(self) -> str: ...

    async def manifest(self, reference: str) -> bytes | None: ...

    def blob(self, digest: str) -> Blob | None: ...


class Images:
    """Those that are made here, and those that lie in archives beside the manager."""

    def __init__(self, sources: Sequence[Source], archives: Archives | None = None) -> None:
        self._sources = {source.repository: source for source in sources}
        self._archives = archives

    async def handle(self, request: Request) -> Response | None:
        """None where the request is not for a registry."""
        if not request.path.startswith(PREFIX):
            return None
        if request.method not in {"GET", "HEAD"}:
            return _refused(405, "UNSUPPORTED", "this registry can only be read")
        if request.path == PREFIX:
            return Response(200, {"content-type": "application/json"}, b"{}")
        asked = _PATH.fullmatch(request.path)
        source = await self._source(asked["name"]) if asked else None
        if asked is None or source is None:
            return _refused(404, "NAME_UNKNOWN", "there is no such repository here")
        if asked["what"] == "manifests":
            return await self._manifest(source, asked["reference"])
        return self._blob(source, asked["reference"], request)

    async def _source(self, name: str) -> Source | None:
        if name in self._sources:
            return self._sources[name]
        return await self._archives.repository(name) if self._archives is not None else None

    async def _manifest(self, source: Source, reference: str) -> Response:
        content = await source.manifest(reference)
        if content is None:
            return _refused(404, "MANIFEST_UNKNOWN", f"{reference}: there is no such version here")
        headers = {"content-type": MANIFEST, "docker-content-digest": digest_of(content)}
        return Response(200, headers, content)  # of a HEAD the front sends the length alone, which runtimes rely on

    def _blob(self, source: Source, digest: str, request: Request) -> Response:
        blob = source.blob(digest)
        if blob is None:
            return _refused(404, "BLOB_UNKNOWN", "there is no such content here")
        headers = {"content-type": "application/octet-stream", "docker-content-digest": digest}
        if request.method == "HEAD":
            return Response(200, headers)
        return Response(200, headers, stream=blob.pieces())


def _refused(status: int, code: str, message: str) -> Response:
    body = {"errors": [{"code": code, "message": message}]}
    return Response(status, {"content-type": "application/json"}, msgspec.json.encode(body))
