"""JSON request and response bodies with validation errors."""

from __future__ import annotations

from typing import Any

import msgspec

from herder.engine.meta.errors import BadRequest
from herder.engine.meta.kinds import Object
from herder.engine.wire import Request, Response

MAX_BODY_BYTES = 64 * 1024
_JSON = {"content-type": "application/json", "cache-control": "no-store"}


async def body_of(request: Request) -> Object:
    await request.receive_body(MAX_BODY_BYTES)
    if len(request.body) > MAX_BODY_BYTES:
        raise BadRequest(f"the body must not be longer than {MAX_BODY_BYTES} bytes")
    try:
        body = msgspec.json.decode(request.body or b"{}")
    except (ValueError, RecursionError):  # invalid JSON or UTF-8, or nested too deeply
        raise BadRequest("the body must be JSON") from None  # The cause would quote the body.
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body


def text_of(body: Object, name: str, default: str = "") -> str:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise BadRequest(f"{name}: must be a string")
    return value


def number_of(body: Object, name: str) -> int:
    value = body.get(name)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > 1 << 53:
        raise BadRequest(f"{name}: must be a whole number")
    return value


def answer(body: Any, status: int = 200, **headers: str) -> Response:
    """JSON response that must not be cached, because it may contain a key."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(status, _JSON | named, msgspec.json.encode(body))
