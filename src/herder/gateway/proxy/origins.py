"""Cross-site request check: cookies are sent by browsers regardless of which page caused the request."""

from __future__ import annotations

from urllib.parse import urlsplit

from herder.engine.meta.errors import Forbidden
from herder.engine.wire import Request

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_PORTS = {"https": 443, "http": 80}


def check_origin(request: Request, server_url: str, *, upgrade: bool) -> None:
    """Raise Forbidden for a cross-site request with a cookie.

    Upgrades return data to the requesting page, so they require our own origin; browsers always send it.
    """
    if "cookie" not in request.headers or "authorization" in request.headers:
        return
    origin = request.headers.get("origin", "")
    if not origin and not upgrade:
        return
    if (upgrade or request.method not in _SAFE_METHODS) and not _same_origin(origin, server_url):
        raise Forbidden(f'origin "{origin}": a cookie is accepted from pages of {server_url or "this server"} only')


def _same_origin(one: str, other: str) -> bool:
    origin = _origin(one)
    return origin is not None and origin == _origin(other)


def _origin(url: str) -> tuple[str, str, int] | None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname or parts.scheme not in _PORTS:
        return None
    return parts.scheme, parts.hostname, port or _PORTS[parts.scheme]
