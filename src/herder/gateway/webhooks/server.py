"""HTTPS webhook server for a real API server, with a replaceable certificate."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

import msgspec

from herder.engine.certificates import load_chain
from herder.engine.front.http import HttpFront
from herder.engine.logs import get_logger
from herder.engine.meta.errors import BadRequest, InternalError, MethodNotAllowed, NotFound, StatusError
from herder.engine.wire import Request, Response
from herder.gateway.webhooks.reviews import ENDPOINTS, Endpoint, answer

log = get_logger(__name__)

_BODY_BYTES = 16 << 20  # A review contains the object twice, and the largest objects take a few MiB.
_JSON = {"content-type": "application/json"}

Answer = Callable[[bytes], Awaitable[bytes]]


class Webhooks:
    """The webhook server. `extra` are handlers for further paths."""

    def __init__(self, *, clock: Callable[[], datetime], extra: Mapping[str, Answer] | None = None) -> None:
        self._answers = {path: _from_rules(endpoint) for path, endpoint in ENDPOINTS.items()} | dict(extra or {})
        self._front = HttpFront(self, clock=clock, body_bytes=_BODY_BYTES)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._context.num_tickets = 0  # API servers reuse connections

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; connections are refused until a certificate is set."""
        return await self._front.listen(host, port, self._context)

    async def stop(self) -> None:
        await self._front.stop()

    def set_certificate(self, certificate_pem: bytes, key_pem: bytes) -> None:
        """Use this certificate from the next connection on; open connections are kept."""
        load_chain(self._context, certificate_pem, key_pem)

    async def handle(self, request: Request) -> Response:
        try:
            return Response(200, dict(_JSON), await self._answered(request))
        except StatusError as error:
            return Response(error.code, dict(_JSON), msgspec.json.encode(error.to_status()))

    async def _answered(self, request: Request) -> bytes:
        answers = self._answers.get(request.path)
        if answers is None:
            raise NotFound(f"{request.path}: no webhook at this path")
        if request.method != "POST":
            raise MethodNotAllowed(f"{request.path}: only POST is supported")
        try:
            return await answers(request.body)
        except BadRequest:
            raise
        except Exception as error:
            # A bug in a rule must refuse the write; the log has the details.
            log.exception("webhook failed", webhook=request.path)
            raise InternalError(f"{request.path}: {type(error).__name__}") from error


def _from_rules(endpoint: Endpoint) -> Answer:
    async def answers(body: bytes) -> bytes:
        return answer(endpoint, body)

    return answers
