"""OCI registry client: reads manifests and blobs, and uploads what is missing."""

from __future__ import annotations

import asyncio
import base64
import hmac
import io
import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import IO, Any
from urllib.parse import urljoin

import aiohttp

from herder.oci import MANIFEST, Content, Image, digest_of, opened, size_of

INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
DOCKER_HUB, DOCKER_HUB_API = "docker.io", "index.docker.io"  # docker.io itself serves a website
_REFERENCE = re.compile(
    r"(?P<host>[A-Za-z0-9.-]+(:[0-9]{1,5})?|\[[0-9a-fA-F:]+\](:[0-9]{1,5})?)/"
    r"(?P<name>[a-z0-9]+([._/-]+[a-z0-9]+)*)"
    r"(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127})|@(?P<digest>sha256:[0-9a-f]{64}))"
)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_MOST_MANIFEST = 4 << 20
_MOST_BLOB = 1 << 30


class RegistryError(Exception):
    """The message names the reference and the registry's response; it never contains a credential."""


@dataclass(frozen=True, slots=True)
class Reference:
    host: str
    name: str
    version: str  # tag or digest

    @classmethod
    def parse(cls, text: str) -> Reference:
        found = _REFERENCE.fullmatch(text)
        if found is None:
            raise RegistryError(f"{text!r}: must be REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:…")
        return cls(found["host"], found["name"], found["tag"] or found["digest"])

    @property
    def url(self) -> str:
        """A registry on a loopback address uses HTTP; any other must use HTTPS."""
        if self.host == DOCKER_HUB:
            return f"https://{DOCKER_HUB_API}/v2/{self.name if '/' in self.name else f'library/{self.name}'}"
        return f"{'http' if _is_loopback(self.host) else 'https'}://{self.host}/v2/{self.name}"


@dataclass(frozen=True, slots=True)
class Login:
    username: str
    password: str

    def __repr__(self) -> str:
        return f"Login({self.username!r})"


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class Repository:
    """A repository in a registry."""

    def __init__(self, reference: Reference, login: Login | None = None) -> None:
        self.reference = reference
        self._login = login
        self._authorization = ""
        # Blobs are compressed already; transparent decompression could return any size.
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600), auto_decompress=False)

    async def __aenter__(self) -> Repository:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._session.close()

    # --- reading ----------------------------------------------------------------------------------------------------

    async def manifest(self, version: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self.manifest_content(version))
        return found

    async def manifest_content(self, version: str) -> bytes:
        """The bytes of a manifest, which is a JSON object."""
        accept = {"Accept": ", ".join((*INDEXES, *MANIFESTS))}
        accepted = (HTTPStatus.OK, HTTPStatus.NOT_FOUND)
        status, body = await self._ask("GET", f"{self.reference.url}/manifests/{version}", accept, accepted=accepted)
        if status == HTTPStatus.NOT_FOUND:
            raise RegistryError(f"{self._shown(version)}: not found in the registry; check the name and the tag")
        if version.startswith("sha256:"):
            self._check(body, version)
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise RegistryError(f"{self._shown(version)}: its manifest is not a JSON object")
        return body

    async def blob(self, digest: str) -> bytes:
        _, body = await self._ask("GET", f"{self.reference.url}/blobs/{digest}", most=_MOST_BLOB)
        self._check(body, digest)
        return body

    async def download(self, digest: str, size: int, to: Path) -> None:
        """Write a blob of this size to a file; never more than its size, or than the largest allowed."""
        if not 0 <= size <= _MOST_BLOB:
            raise RegistryError(f"{self._shown(digest)}: {size} bytes are more than the limit of {_MOST_BLOB}")
        with to.open("wb") as file:
            answer = await self._send("GET", f"{self.reference.url}/blobs/{digest}", {}, b"", size, file)
        if answer.status != HTTPStatus.OK:
            raise RegistryError(f"{self._shown()}: the registry answered GET with HTTP status {answer.status}")
        self._check(to, digest)

    def _check(self, content: Content, digest: str) -> None:
        if not hmac.compare_digest(digest_of(content), digest):
            raise RegistryError(f"{self._shown(digest)}: the content does not match the digest")

    # --- writing ----------------------------------------------------------------------------------------------------

    async def has_blob(self, digest: str) -> bool:
        status, _ = await self._ask("HEAD", f"{self.reference.url}/blobs/{digest}", accepted=(200, 404))
        return status == 200

    async def put_blob(self, content: Content) -> str:
        digest = await asyncio.to_thread(digest_of, content)
        if await self.has_blob(digest):
            return digest
        started = await self._send("POST", f"{self.reference.url}/blobs/uploads/", {}, b"")
        location = urljoin(f"{self.reference.url}/blobs/uploads/", started.headers.get("Location", ""))
        if started.status != 202 or not _same_host(location, self.reference.url):
            raise RegistryError(f"{self._shown()}: the registry refused the upload with HTTP status {started.status}")
        complete = f"{location}{'&' if '?' in location else '?'}digest={digest}"
        await self._ask("PUT", complete, {"Content-Type": "application/octet-stream"}, content, accepted=(201,))
        return digest

    async def put_image(self, made: Image) -> str:
        """Upload an image and return its digest; existing blobs are skipped."""
        for content in made.blobs.values():
            await self.put_blob(content)
        return await self.put_manifest(made.manifest)

    async def put_manifest(self, manifest: bytes) -> str:
        url = f"{self.reference.url}/manifests/{self.reference.version}"
        await self._ask("PUT", url, {"Content-Type": MANIFEST}, manifest, accepted=(201,))
        return digest_of(manifest)

    # --- requests ---------------------------------------------------------------------------------------------------

    async def _ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: Content = b"",
        accepted: tuple[int, ...] = (200,),
        most: int = _MOST_MANIFEST,
    ) -> tuple[int, bytes]:
        answer = await self._send(method, url, headers or {}, body, most)
        if answer.status not in accepted:
            raise RegistryError(f"{self._shown()}: the registry answered {method} with HTTP status {answer.status}")
        return answer.status, answer.body

    async def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: Content,
        most: int = _MOST_MANIFEST,
        into: IO[bytes] | None = None,
    ) -> _Answer:
        """Authenticate once if the registry requires it, and repeat the request. `into`: a file for a 200 response."""
        answer = await self._once(method, url, headers, body, most, into)
        challenge = answer.headers.get("WWW-Authenticate", "")
        if answer.status == 401 and challenge:
            self._authorization = await self._authorize(challenge)
            answer = await self._once(method, url, headers, body, most, into)
        return answer

    async def _once(
        self, method: str, url: str, headers: Mapping[str, str], body: Content, most: int, into: IO[bytes] | None = None
    ) -> _Answer:
        given = {**headers, **({"Authorization": self._authorization} if self._authorization else {})}
        try:
            data = opened(body) if size_of(body) else None  # closed by the session
            async with self._session.request(method, url, headers=given, data=data) as answer:
                if into is not None and answer.status == HTTPStatus.OK:
                    await self._copy(answer, most, into)
                    return _Answer(answer.status, answer.headers, b"")
                most = most if into is None else _MOST_MANIFEST
                return _Answer(answer.status, answer.headers, await self._read(answer, most))
        except (aiohttp.ClientError, TimeoutError) as error:
            raise RegistryError(f"{self._shown()}: {error or 'no answer in time'}") from None

    async def _read(self, answer: aiohttp.ClientResponse, most: int) -> bytes:
        content = io.BytesIO()
        await self._copy(answer, most, content)
        return content.getvalue()

    async def _copy(self, answer: aiohttp.ClientResponse, most: int, to: IO[bytes]) -> None:
        size = 0
        async for piece in answer.content.iter_any():
            size += len(piece)
            if size > most:
                raise RegistryError(f"{self._shown()}: the registry sends more than {most} bytes")
            to.write(piece)

    async def _authorize(self, challenge: str) -> str:
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "basic" and self._login is not None:
            return self._basic(self._login)
        parameters = dict(_CHALLENGE.findall(rest))
        realm = parameters.get("realm", "")
        if scheme.lower() != "bearer" or not (realm.startswith("https://") or _same_host(realm, self.reference.url)):
            raise RegistryError(
                f"{self._shown()}: the registry requires authentication; pass --username and --password-file"
            )
        wanted = {key: parameters[key] for key in ("service", "scope") if key in parameters}
        headers = {"Authorization": self._basic(self._login)} if self._login else {}
        async with self._session.get(realm, params=wanted, headers=headers) as answer:
            if answer.status != 200:
                raise RegistryError(f"{self._shown()}: the registry refused the login with HTTP status {answer.status}")
            found = json.loads(await self._read(answer, _MOST_MANIFEST))
        return f"Bearer {found.get('token') or found.get('access_token')}"

    @staticmethod
    def _basic(login: Login) -> str:
        return "Basic " + base64.b64encode(f"{login.username}:{login.password}".encode()).decode()

    def _shown(self, version: str = "") -> str:
        return f"{self.reference.host}/{self.reference.name}{f' {version}' if version else ''}"


def _is_loopback(host: str) -> bool:
    """Only localhost and loopback addresses: a name such as 127.example.com can be of any host."""
    bare = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    try:
        return bare == "localhost" or ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False


def _same_host(one: str, other: str) -> bool:
    """Uploads carry credentials, so they must stay on the same host."""
    return one.split("/", 3)[:3] == other.split("/", 3)[:3]
