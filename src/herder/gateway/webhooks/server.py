"""The HTTPS server that a real API server asks. It shows whatever certificate it was last told to."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

import msgspec

from herder.engine.certificates import load_chain
from herder.engine.client.wire import Request, Response
from herder.engine.front.http import HttpFront
from herder.engine.logs import get_logger
from herder.engine.meta.errors import BadRequest, InternalError, MethodNotAllowed, NotFound, StatusError
from herder.gateway.webhooks.reviews import ENDPOINTS, Endpoint, answer

log = get_logger(__name__)

_BODY_BYTES = 16 << 20  # a question holds the object twice, and the largest object there is takes a few MiB
_JSON = {"content-type": "application/json"}

Answer = Callable[[bytes], Awaitable[bytes]]


class Webhooks:
    """`more`: who answers at further paths, beside those that need nothing but the question."""

    def __init__(self, *, clock: Callable[[], datetime], more: Mapping[str, Answer] | None = None) -> None:
        self._answers = {path: _from_rules(endpoint) for path, endpoint in ENDPOINTS.items()} | dict(more or {})
        self._front = HttpFront(self, clock=clock, body_bytes=_BODY_BYTES)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._context.num_tickets = 0  # API servers keep their connections

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; who connects is turned away until there is a certificate to show."""
        return await self._front.listen(host, port, self._context)

    async def stop(self) -> None:
        await self._front.stop()

    def show(self, certificate_pem: bytes, key_pem: bytes) -> None:
        """From the next connection on. Those that are open go on as they are."""
        load_chain(self._context, certificate_pem, key_pem)

    async def handle(self, request: Request) -> Response:
        try:
            return Response(200, dict(_JSON), await self._answered(request))
        except StatusError as error:
            return Response(error.code, dict(_JSON), msgspec.json.encode(error.to_status()))

    async def _answered(self, request: Request) -> bytes:
        answers = self._answers.get(request.path)
        if answers is None:
            raise NotFound(f"{request.path}: there is no webhook here")
        if request.method != "POST":
            raise MethodNotAllowed(f"{request.path}: an AdmissionReview is posted here")
        try:
            return await answers(request.body)
        except BadRequest:
            raise
        except Exception as error:
            # An object that breaks a rule's own code: the write is refused, and the log says where.
            log.exception("a webhook failed", webhook=request.path)
            raise InternalError(f"{request.path}: {type(error).__name__}") from error


def _from_rules(endpoint: Endpoint) -> Answer:
    async def answers(body: bytes) -> bytes:
        return answer(endpoint, body)

    return answers
