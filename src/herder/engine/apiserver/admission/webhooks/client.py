"""HTTPS client for webhooks, which are addressed by URL or by Service.

The caBundle of the configuration is the trust anchor. Connections are pooled. aiohttp is imported on the first call
only.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from herder.engine.apiserver.admission.chain import metadata
from herder.engine.apiserver.admission.objects import Objects
from herder.engine.apiserver.auth.policy import quoted
from herder.engine.meta.kinds import GroupResource, Object

if TYPE_CHECKING:
    import aiohttp

_MAX_RESPONSE_BYTES = 16 << 20
_SERVICES = GroupResource("", "services")
_ENDPOINTS = GroupResource("", "endpoints")
_ENDPOINT_SLICES = GroupResource("discovery.k8s.io", "endpointslices")


class CallFailed(Exception):
    """The webhook could not be called. The message follows `failed to call webhook: `."""


class Address(NamedTuple):
    """Host and port of an endpoint."""

    host: str
    port: int


Resolver = Callable[[str, str, int], Awaitable[Address]]
"""Resolves namespace, name and port of a Service to a reachable address. Raises CallFailed."""


class WebhookClient:
    """Calls webhooks. The caller closes it."""

    def __init__(self, resolver: Resolver, may_dial: Callable[[str], bool] | None = None) -> None:
        """`may_dial` is asked for each address before it is dialed; None allows all."""
        self._resolver = resolver
        self._may_dial = may_dial
        self._session: aiohttp.ClientSession | None = None
        self._contexts: dict[str, ssl.SSLContext] = {}

    async def call(self, config: Object, body: bytes, *, seconds: float) -> bytes:
        """POST `body` to the webhook of a clientConfig and return the response body."""
        url, server_name, address = await self._target(config, seconds)
        try:
            async with asyncio.timeout(seconds):
                return await self._post(url, body, config.get("caBundle") or "", server_name, address)
        except TimeoutError:
            raise CallFailed(f'Post "{url}": context deadline exceeded') from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _target(self, config: Object, seconds: float) -> tuple[str, str | None, Address | None]:
        query = f"timeout={int(seconds)}s"
        service = config.get("service")
        if not service:
            url = str(config.get("url") or "")
            if not url.startswith("https://"):
                raise CallFailed("clientConfig.url: must begin with https://")
            return f"{url}{'&' if '?' in url else '?'}{query}", None, None
        namespace, name = str(service.get("namespace") or ""), str(service.get("name") or "")
        port = int(service.get("port") or 443)
        host = f"{name}.{namespace}.svc"
        url = f"https://{host}:{port}/{str(service.get('path') or '').lstrip('/')}?{query}"
        try:
            address = await self._resolver(namespace, name, port)
        except CallFailed as error:
            raise CallFailed(f'Post "{url}": {error}') from None
        return url, host, address

    async def _post(
        self, url: str, body: bytes, authority: str, server_name: str | None, address: Address | None
    ) -> bytes:
        import aiohttp
        from yarl import URL

        from herder.engine.client.http import socket_factory

        if self._session is None:
            connector = aiohttp.TCPConnector(socket_factory=socket_factory(self._may_dial))
            # Do not use a proxy of the environment: it would see the admitted objects.
            self._session = aiohttp.ClientSession(connector=connector, trust_env=False, auto_decompress=True)
        target = URL(url, encoded=False)
        headers = {"Content-Type": "application/json", "Accept": "application/json, */*"}
        if address is not None:
            headers["Host"] = target.authority
            target = target.with_host(address.host).with_port(address.port)
        try:
            async with self._session.post(
                target,
                data=body,
                headers=headers,
                ssl=self._context(authority),
                server_hostname=server_name,
                allow_redirects=False,
            ) as response:
                content = await _read_limited(response)
        except aiohttp.ClientConnectorCertificateError as error:
            raise CallFailed(f'Post "{url}": tls: failed to verify certificate: {error.certificate_error}') from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise CallFailed(f'Post "{url}": {error}') from None
        if not 200 <= response.status < 300:
            raise CallFailed(_error_message(response.status, content))
        return content

    def _context(self, authority: str) -> ssl.SSLContext:
        context = self._contexts.get(authority)
        if context is None:
            context = _tls_context(authority)
            if len(self._contexts) > 256:
                self._contexts.clear()
            self._contexts[authority] = context
        return context


def _tls_context(authority: str) -> ssl.SSLContext:
    if not authority:
        return ssl.create_default_context()
    try:
        pem = base64.b64decode(authority).decode()
        context = ssl.create_default_context(cadata=pem)
    except (binascii.Error, ValueError, ssl.SSLError):
        raise CallFailed("unable to load root certificates: unable to parse bytes as PEM block") from None
    # CAs created for webhooks often lack extensions that strict mode (the default of newer Python versions) requires.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


_ERROR_MESSAGES = {
    401: "the server has asked for the client to provide credentials",
    403: "the server does not allow access to the requested resource",
    404: "the server could not find the requested resource",
    409: "the server reported a conflict",
    429: "the server has received too many requests and has asked us to try again later",
}


def _error_message(code: int, body: bytes) -> str:
    if code >= 500:
        shown = quoted(body[:256].decode("utf-8", "replace"))
        return f"an error on the server ({shown}) has prevented the request from succeeding"
    return _ERROR_MESSAGES.get(code, "the server rejected our request for an unknown reason")


async def _read_limited(response: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > _MAX_RESPONSE_BYTES:
            raise ValueError("the response is too long")
    return bytes(content)


class ServiceResolver:
    """Resolves a Service through its endpoints in the API: there is no cluster network that could route a cluster
    IP."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def __call__(self, namespace: str, name: str, port: int) -> Address:
        service = self._objects.get(_SERVICES, namespace, name)
        if service is None:
            raise CallFailed(f'service "{name}" not found')
        spec = service.get("spec") or {}
        if spec.get("type") == "ExternalName":
            return Address(str(spec.get("externalName")), port)
        served = next((item for item in spec.get("ports") or () if item.get("port") == port), None)
        if served is None:
            raise CallFailed(f'no service port {port} found for service "{name}"')
        port_name = served.get("name") or ""
        address = self._from_slices(namespace, name, port_name) or self._from_endpoints(namespace, name, port_name)
        if address is None:
            raise CallFailed(f'no endpoints available for service "{name}"')
        return address

    def _from_slices(self, namespace: str, name: str, port_name: str) -> Address | None:
        for item in self._objects.list(_ENDPOINT_SLICES, namespace):
            if (metadata(item).get("labels") or {}).get("kubernetes.io/service-name") != name:
                continue
            for endpoint in item.get("endpoints") or ():
                ready = (endpoint.get("conditions") or {}).get("ready") is not False
                port = _port_named(item.get("ports") or (), port_name)
                if ready and port and endpoint.get("addresses"):
                    return Address(endpoint["addresses"][0], port)
        return None

    def _from_endpoints(self, namespace: str, name: str, port_name: str) -> Address | None:
        endpoints = self._objects.get(_ENDPOINTS, namespace, name) or {}
        for subset in endpoints.get("subsets") or ():
            port = _port_named(subset.get("ports") or (), port_name)
            if port and subset.get("addresses"):
                return Address(subset["addresses"][0].get("ip", ""), port)
        return None


def _port_named(ports: object, name: str) -> int | None:
    if not isinstance(ports, list):
        return None
    return next((item.get("port") for item in ports if (item.get("name") or "") == name), None)
