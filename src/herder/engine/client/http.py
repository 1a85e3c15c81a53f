"""The transport over HTTPS, with connections that may be dialled any way: directly, or through a tunnel."""

from __future__ import annotations

import asyncio
import socket as sockets
from collections.abc import AsyncIterator, Awaitable, Callable
from errno import EACCES
from functools import partial
from socket import IPPROTO_TCP, SO_KEEPALIVE, SOL_SOCKET, socket
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from herder import __version__
from herder.engine.client.credentials import credentials_for
from herder.engine.client.kubeconfig import Connection
from herder.engine.client.tls import tls_context
from herder.engine.client.wire import ANSWER_BYTES, AnswerTooLong, Request, Response
from herder.engine.meta.errors import ServiceUnavailable

Dialer = Callable[[str, int], Awaitable[socket]]
"""Opens a connected, non-blocking socket to a host and port: the seam through which a tunnel is used."""

USER_AGENT = f"herder/{__version__}"
WATCH_READ_BYTES = 1 << 18
REQUEST_SECONDS = 70.0
"""Until an answer must be there (a watch: its head). Servers give up after a minute themselves."""
_PROBES = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}


class HttpTransport:
    """`may_dial` is asked for each address that is about to be dialed, after its name was resolved: a name may stand
    for another address each time. `most_bytes` bounds an answer that is not a stream.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        dialer: Dialer | None = None,
        may_dial: Callable[[str], bool] | None = None,
        most_bytes: int = ANSWER_BYTES,
    ) -> None:
        self.connection = connection
        self._most_bytes = most_bytes
        self._credentials = credentials_for(connection)
        context = tls_context(connection) if connection.server.startswith("https:") else False
        # No limit on connections: each watch holds one, and a request must never wait for a watch to end.
        connector = (
            _DialledConnector(dialer, limit=0, ssl=context)
            if dialer
            else aiohttp.TCPConnector(limit=0, ssl=context, socket_factory=partial(_probing_socket, may_dial))
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            # A few compressed kilobytes can be gigabytes: compressed answers are neither requested nor accepted.
            auto_decompress=False,
            read_bufsize=WATCH_READ_BYTES,
            # A watch may be silent for as long as it likes; other answers are bounded where they are awaited.
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
                answer = await self._session.request(
                    request.method,
                    url,
                    headers=headers,
                    data=request.body or None,
                    server_hostname=self.connection.tls_server_name or None,
                    proxy=self.connection.proxy_url or None,
                    allow_redirects=False,
                )
                if answer.status == 401:
                    self._credentials.refused()
                if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
                    answer.close()
                    raise AnswerTooLong(f"{_host(self.connection.server)}: the answer is compressed")
                if request.flows and answer.status < 300:
                    return Response(answer.status, _headers(answer), stream=_stream(answer))
                body = await self._read(answer)
        except TimeoutError as error:
            raise ServiceUnavailable(f"{_host(self.connection.server)}: no answer in time") from error
        except (aiohttp.ClientError, OSError, RuntimeError) as error:  # RuntimeError: closed while others still ask
            raise ServiceUnavailable(f"{_host(self.connection.server)}: {error}") from error
        return Response(answer.status, _headers(answer), body)

    async def _read(self, answer: aiohttp.ClientResponse) -> bytes:
        pieces: list[bytes] = []
        size = 0
        async for piece in answer.content.iter_any():
            pieces.append(piece)
            size += len(piece)
            if size > self._most_bytes:
                answer.close()
                raise AnswerTooLong(
                    f"{_host(self.connection.server)}: the answer is longer than {self._most_bytes} bytes"
                )
        return b"".join(pieces)

    async def close(self) -> None:
        await self._session.close()


class _DialledConnector(aiohttp.TCPConnector):
    """Connects through a dialer instead of the network; names are not looked up here, the far side may know them."""

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


def _probing_socket(may_dial: Callable[[str], bool] | None, info: Any) -> socket:
    """A socket whose peer is asked for signs of life: a connection that a firewall forgot is not a silent one."""
    family, kind, protocol, _, address = info
    if may_dial is not None and not may_dial(address[0]):
        raise PermissionError(EACCES, f"address {address[0]} is not allowed for a workload cluster")
    made = socket(family, kind, protocol)
    made.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
    for name, value in _PROBES.items():
        if hasattr(sockets, name):  # not every platform has all of them
            made.setsockopt(IPPROTO_TCP, getattr(sockets, name), value)
    return made


async def _stream(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.content.iter_any():
            yield chunk
    except (aiohttp.ClientError, OSError) as error:
        raise ServiceUnavailable(f"{answer.url.host}: {error}") from error
    finally:
        answer.close()


def _headers(answer: aiohttp.ClientResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.headers.items()}


def _host(server: str) -> str:
    return urlsplit(server).netloc.rpartition("@")[2]


def _quoted(path: str) -> str:
    return URL.build(path=path).raw_path
