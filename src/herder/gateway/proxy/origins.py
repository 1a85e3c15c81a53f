"""Whether a browser was sent here by a page of somebody else's. A cookie comes along whoever made the browser ask."""

from __future__ import annotations

from urllib.parse import urlsplit

from herder.engine.client.wire import Request
from herder.engine.meta.errors import Forbidden

_HARMLESS = frozenset({"GET", "HEAD", "OPTIONS"})
_PORTS = {"https": 443, "http": 80}


def check_origin(request: Request, server_url: str, *, upgrade: bool) -> None:
    """Raises Forbidden. An upgrade shows its answer to the page that asked, and so needs to come from a page of ours;
    browsers always say which page it was."""
    if "cookie" not in request.headers or "authorization" in request.headers:
        return
    origin = request.headers.get("origin", "")
    if not origin and not upgrade:
        return
    if (upgrade or request.method not in _HARMLESS) and not _same_place(origin, server_url):
        raise Forbidden(f'origin "{origin}": a cookie is accepted from pages of {server_url or "this server"} only')


def _same_place(one: str, other: str) -> bool:
    place = _place(one)
    return place is not None and place == _place(other)


def _place(url: str) -> tuple[str, str, int] | None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname or parts.scheme not in _PORTS:
        return None
    return parts.scheme, parts.hostname, port or _PORTS[parts.scheme]
