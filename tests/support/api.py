"""HTTP client of tests for any API server; responses keep status, headers, warnings and body as they were sent."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from herder.engine.client.kubeconfig import RestConfig
from herder.engine.client.tls import tls_context

JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

TIMEOUT = 120.0  # below faulthandler_timeout, which ends the whole worker
"""Seconds after which a wait fails: far more than it takes, even on a busy machine."""


@dataclass(frozen=True)
class ApiResponse:
    status: int
    headers: dict[str, str]  # names in lower case
    warnings: list[str]  # values of the Warning headers
    content: bytes

    @property
    def body(self) -> Any:
        return msgspec.json.decode(self.content)

    @property
    def text(self) -> str:
        return self.content.decode()

    @property
    def reason(self) -> str:
        return str(self.body.get("reason", ""))

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))

    @property
    def causes(self) -> list[tuple[str, str, str]]:
        """Reason, field and message of each cause."""
        causes = (self.body.get("details") or {}).get("causes") or []
        return [(cause.get("reason", ""), cause.get("field", ""), cause.get("message", "")) for cause in causes]

    @property
    def failure(self) -> tuple[int, str, str]:
        """Code, reason and message of the Status."""
        return self.status, self.reason, self.message

    def expect(self, *statuses: int) -> Any:
        """Return the body; fail unless the status is one of these."""
        assert self.status in statuses, f"{self.status}: {self.text[:2000]}"
        return self.body


class Api:
    """One client. Paths are written in short form: `configmaps`, `apps/v1/deployments`, in the client's namespace."""

    def __init__(
        self,
        connection: RestConfig,
        *,
        namespace: str = "default",
        headers: dict[str, str] | None = None,
        session: aiohttp.ClientSession | None = None,
    ) -> None:
        self.connection = connection
        self.namespace = namespace
        self.headers = headers or {}
        self._session = session or aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=tls_context(connection)),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT),
            auto_decompress=False,
            headers={"User-Agent": "tester/1", "Accept": "application/json", "Accept-Encoding": "identity"},
            read_bufsize=1 << 20,
        )

    async def close(self) -> None:
        await self._session.close()

    # --- user and namespace -------------------------------------------------------------------------------------------

    def in_namespace(self, namespace: str) -> Api:
        return Api(self.connection, namespace=namespace, headers=self.headers, session=self._session)

    def with_headers(self, **headers: str) -> Api:
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return Api(self.connection, namespace=self.namespace, headers=self.headers | more, session=self._session)

    def as_user(self, name: str, group: str = "") -> Api:
        """Return a client that impersonates this user."""
        more = {"impersonate-user": name} | ({"impersonate-group": group} if group else {})
        return self.with_headers(**more)

    def with_token(self, token: str) -> Api:
        """Return a client with a token instead of the administrator's certificate; close it after use."""
        bare = replace(self.connection, client_certificate=None, client_key=None)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return Api(bare, namespace=self.namespace, headers=headers)

    async def in_new_namespace(self) -> Api:
        name = f"t-{uuid.uuid4().hex[:10]}"
        (await self.post("/api/v1/namespaces", {"metadata": {"name": name}})).expect(201)
        return self.in_namespace(name)

    def at(self, resource: str, name: str = "", sub: str = "") -> str:
        """Path of a resource in this namespace."""
        return self._path(resource, f"namespaces/{self.namespace}/", name, sub)

    def cluster(self, resource: str, name: str = "", sub: str = "") -> str:
        """Path of a cluster-scoped resource, or of a resource in all namespaces."""
        return self._path(resource, "", name, sub)

    @staticmethod
    def _path(resource: str, scope: str, name: str, sub: str) -> str:
        group, _, plural = resource.rpartition("/")
        root = f"/apis/{group}" if group else "/api/v1"
        return "/".join(part for part in (f"{root}/{scope}{plural}", name, sub) if part)

    # --- requests -----------------------------------------------------------------------------------------------

    async def send(self, method: str, url: str, body: Any = None, **headers: str) -> ApiResponse:
        """Send a request. `body` is sent as JSON, bytes and the URL are sent unchanged."""
        content = body if isinstance(body, bytes | None) else msgspec.json.encode(body)
        sent = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        if content is not None:
            sent.setdefault("content-type", "application/json")
        async with self._session.request(
            method,
            URL(self.connection.server + url, encoded=True),
            data=BytesIO(content) if content is not None else None,
            headers=sent,
            allow_redirects=False,
            skip_auto_headers=["Content-Type"],
        ) as answer:
            read = await answer.read()
            names = {name.lower(): value for name, value in answer.headers.items()}
            return ApiResponse(answer.status, names, answer.headers.getall("Warning", []), read)

    async def get(self, url: str, **headers: str) -> ApiResponse:
        return await self.send("GET", url, **headers)

    async def post(self, url: str, body: Any, **headers: str) -> ApiResponse:
        return await self.send("POST", url, body, **headers)

    async def put(self, url: str, body: Any, **headers: str) -> ApiResponse:
        return await self.send("PUT", url, body, **headers)

    async def patch(self, url: str, body: Any, content_type: str = MERGE) -> ApiResponse:
        return await self.send("PATCH", url, body, content_type=content_type)

    async def apply(self, url: str, body: Any, manager: str = "applier", *, force: bool = False) -> ApiResponse:
        query = f"{'&' if '?' in url else '?'}fieldManager={manager}" + ("&force=true" if force else "")
        return await self.send("PATCH", url + query, body, content_type=APPLY)

    async def delete(self, url: str, options: Any = None) -> ApiResponse:
        return await self.send("DELETE", url, options)

    # --- requests that must succeed -----------------------------------------------------------------------------------

    async def create(self, resource: str, obj: Any) -> Any:
        """Create an object in this namespace; return it as stored."""
        return (await self.post(self.at(resource), obj)).expect(201)

    async def create_cluster(self, resource: str, obj: Any) -> Any:
        return (await self.post(self.cluster(resource), obj)).expect(201)

    async def read(self, url: str) -> Any:
        return (await self.get(url)).expect(200)

    async def names(self, url: str) -> list[str]:
        """Names of the items of a list, in order."""
        return [item["metadata"]["name"] for item in (await self.read(url))["items"]]

    async def until_gone(self, url: str) -> None:
        """Wait until the object does not exist."""
        await self.until(url, lambda answer: answer.status == 404)

    async def until(self, url: str, wanted: Callable[[ApiResponse], bool]) -> ApiResponse:
        """Poll until the response satisfies `wanted`, for what no watch reports (such as whether a path is served)."""
        answer = await self.get(url)
        deadline = asyncio.get_running_loop().time() + TIMEOUT
        while not wanted(answer):
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"{url} is still {answer.status}: {answer.text}")
            await asyncio.sleep(0.02)
            answer = await self.get(url)
        return answer

    async def until_object(self, url: str, wanted: Callable[[Any], bool]) -> Any:
        """Watch one object until it satisfies `wanted`; `url` names it."""
        collection, _, name = url.rpartition("/")
        async with self.watch(f"{collection}?fieldSelector=metadata.name%3D{name}") as events:
            while True:
                event = await events.next()
                if event["type"] in ("ADDED", "MODIFIED") and wanted(event["object"]):
                    return event["object"]

    @asynccontextmanager
    async def watch(self, url: str, **headers: str) -> AsyncIterator[WatchStream]:
        url += f"{'&' if '?' in url else '?'}watch=true"
        sent = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        async with await self._open(url, sent) as answer:
            if answer.status != 200:
                raise AssertionError(f"watch: {answer.status}: {(await answer.text())[:2000]}")
            yield WatchStream(answer.content)

    async def _open(self, url: str, headers: dict[str, str]) -> aiohttp.ClientResponse:
        """Open a stream. kube-apiserver returns 429 for watches of a kind that has just changed, and clients retry."""
        while True:
            answer = await self._session.get(
                URL(self.connection.server + url, encoded=True),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=None),
            )
            if answer.status != 429:
                return answer
            answer.release()
            await asyncio.sleep(0.05)


class WatchStream:
    """Events of one watch, one at a time."""

    def __init__(self, stream: aiohttp.StreamReader) -> None:
        self._stream = stream
        self._buffer = b""

    async def next(self) -> Any:
        line = await self._line()
        assert line, "the watch has ended"
        return msgspec.json.decode(line)

    async def take(self, count: int) -> list[tuple[str, str]]:
        """Type and name of the next events."""
        events = [await self.next() for _ in range(count)]
        return [(event["type"], event["object"]["metadata"].get("name", "")) for event in events]

    async def rest(self) -> list[Any]:
        """Every event until the server ends the stream."""
        events = []
        while line := await self._line():
            events.append(msgspec.json.decode(line))
        return events

    async def _line(self) -> bytes:
        """The next line, empty at the end of the stream. A line may be longer than any buffer."""
        async with asyncio.timeout(TIMEOUT):
            while b"\n" not in self._buffer:
                chunk = await self._stream.readany()
                if not chunk:
                    return b""
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line
