"""HTTPS transport over direct or dialed (tunneled) connections."""

from __future__ import annotations

import asyncio
import socket as sockets
from collections.abc import AsyncIterator, Awaitable, Callable
from errno import EACCES, ECONNREFUSED
from functools import partial
from socket import IPPROTO_TCP, SO_KEEPALIVE, SOL_SOCKET, socket
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from herder import __version__
from herder.engine.client.credentials import credentials_for
from herder.engine.client.kubeconfig import RestConfig
from herder.engine.client.tls import tls_context
from herder.engine.meta.errors import ServiceUnavailable
from herder.engine.wire import MAX_RESPONSE_BYTES, Request, Response, ResponseTooLarge

Dialer = Callable[[str, int], Awaitable[socket]]
"""Opens a connected, non-blocking socket to a host and port; a tunnel provides one."""

USER_AGENT = f"herder/{__version__}"
WATCH_READ_BYTES = 1 << 18
REQUEST_SECONDS = 70.0
"""Time limit for a response (for a watch: its headers). Servers time out after a minute themselves."""
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}


class HttpTransport:
    """Transport to an API server.

    `may_dial` is called with each resolved address before it is dialed, because a name may resolve to another address
    each time. `max_bytes` limits responses that are not streams.
    """

    def __init__(
        self,
        connection: RestConfig,
        *,
        dialer: Dialer | None = None,
        may_dial: Callable[[str], bool] | None = None,
        max_bytes: int = MAX_RESPONSE_BYTES,
    ) -> None:
        self.connection = connection
        self._max_bytes = max_bytes
        self._credentials = credentials_for(connection)
        context = tls_context(connection) if connection.server.startswith("https:") else False
        # No connection limit: each watch occupies one, and a request must not wait for a watch to end.
        connector = (
            _DialedConnector(dialer, limit=0, ssl=context)
            if dialer
            else aiohttp.TCPConnector(limit=0, ssl=context, socket_factory=socket_factory(may_dial))
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            # Compressed responses are neither requested nor accepted: a few kilobytes can expand to gigabytes.
            auto_decompress=False,
            read_bufsize=WATCH_READ_BYTES,
            # A watch may be silent indefinitely; other responses have a time limit where they are awaited.
            timeout=aiohttp.ClientTimeout(total=None, connect=30),
            headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
        )

    async def send(self, request: Request) -> Response:
        headers = {name: value for name, value in request.headers.items() if name.lower() != "accept-encoding"}
        authorization = await self._credentials.header()
        if authorization:
            headers["authorization"] = authorization
        query = str(request.query)
        url = URL(self.connection.server + _quoted(request.path) + (f"?{query}" if query else ""), encoded=True)
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                response = await self._session.request(
                    request.method,
                    url,
                    headers=headers,
                    data=request.body or None,
                    server_hostname=self.connection.tls_server_name or None,
                    proxy=self.connection.proxy_url or None,
                    allow_redirects=False,
                )
                if response.status == 401:
                    self._credentials.invalidate()
                if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                    response.close()
                    raise ResponseTooLarge(
                        f"{_host(self.connection.server)}: response is compressed, which was not requested"
                    )
                if request.is_streaming and response.status < 300:
                    return Response(response.status, _headers(response), stream=_stream(response))
                body = await self._read(response)
        except TimeoutError as error:
            raise ServiceUnavailable(f"{_host(self.connection.server)}: response timed out") from error
        except (aiohttp.ClientError, OSError, RuntimeError) as error:  # RuntimeError: session closed during a request
            raise ServiceUnavailable(f"{_host(self.connection.server)}: {_cause(error)}") from error
        return Response(response.status, _headers(response), body)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        pieces: list[bytes] = []
        size = 0
        async for piece in response.content.iter_any():
            pieces.append(piece)
            size += len(piece)
            if size > self._max_bytes:
                response.close()
                raise ResponseTooLarge(f"{_host(self.connection.server)}: response exceeds {self._max_bytes} bytes")
        return b"".join(pieces)

    async def close(self) -> None:
        await self._session.close()


class _DialedConnector(aiohttp.TCPConnector):
    """Connects through a dialer. Names are not resolved here, because only the remote side may know them."""

    def __init__(self, dialer: Dialer, **options: Any) -> None:
        super().__init__(**options)
        self._dialer = dialer

    async def _resolve_host(self, host: str, port: int, traces: Any = None) -> list[Any]:
        return [{"hostname": host, "host": "0.0.0.0", "port": port, "family": 2, "proto": 0, "flags": 0}]  # noqa: S104

    async def _wrap_create_connection(self, *args: Any, req: Any, **options: Any) -> Any:
        sock = await self._dialer(req.url.raw_host or "", req.url.port or 443)
        for unused in ("addr_infos", "timeout", "client_error", "local_addr_infos", "socket_factory"):
            options.pop(unused, None)
        if options.get("ssl") and not options.get("server_hostname"):
            options["server_hostname"] = req.url.raw_host
        return await asyncio.get_running_loop().create_connection(*args, sock=sock, **options)


def socket_factory(may_dial: Callable[[str], bool] | None) -> Callable[[Any], socket]:
    """For a connector: it opens no connection to an address that `may_dial` rejects."""
    return partial(_keepalive_socket, may_dial)


def _keepalive_socket(may_dial: Callable[[str], bool] | None, info: Any) -> socket:
    """Create a socket with TCP keepalive, to detect connections that a firewall dropped."""
    family, kind, protocol, _, address = info
    if may_dial is not None and not may_dial(address[0]):
        raise PermissionError(EACCES, f"address {address[0]} is not allowed for a workload cluster")
    created = socket(family, kind, protocol)
    created.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(sockets, name):  # not available on every platform
            created.setsockopt(IPPROTO_TCP, getattr(sockets, name), value)
    return created


async def _stream(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.content.iter_any():
            yield chunk
    except (aiohttp.ClientError, OSError) as error:
        raise ServiceUnavailable(f"{response.url.host}: {error}") from error
    finally:
        response.close()


def _headers(response: aiohttp.ClientResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}


def _cause(error: Exception) -> str:
    """The cause of a failed connection, without the parts that aiohttp repeats."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        found = error.certificate_error
        reason = getattr(found, "verify_message", "") or str(found)
        return f"the server's certificate is not trusted ({reason}); use the kubeconfig or CA of this server"
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno == ECONNREFUSED:
        return "connection refused; check the address, and whether the server runs"
    return str(error)


def _host(server: str) -> str:
    return urlsplit(server).netloc.rpartition("@")[2]


def _quoted(path: str) -> str:
    return URL.build(path=path).raw_path
