"""Carries a conversion review to a webhook over HTTPS."""

from __future__ import annotations

import base64
import ssl
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from herder.engine.meta.kinds import Object

_TIMEOUT_SECONDS = 30
_LARGEST_ANSWER = 64 << 20


async def post_review(config: Object, review: Object) -> Any:
    """The decoded answer. A service is looked for under its cluster name, which resolves only where DNS knows it."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
    headers = {"content-type": "application/json", "accept": "application/json"}
    url = url_of(config)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(
            url, data=msgspec.json.encode(review), headers=headers, ssl=_trust(config), allow_redirects=False
        ) as response,
    ):
        body = await response.content.read(_LARGEST_ANSWER)
        if response.status != 200:
            told = body[:512].decode(errors="replace").strip()
            raise ConnectionError(f"Post {url}: unexpected status {response.status}: {told}")
        return msgspec.json.decode(body)


def url_of(config: Object) -> str:
    """Where a webhook's client configuration points to, without what does not belong on the wire."""
    if config.get("url"):
        return urlunsplit(urlsplit(config["url"])._replace(fragment=""))
    service = config.get("service") or {}
    path = "/" + (service.get("path") or "").lstrip("/")
    return f"https://{service.get('name')}.{service.get('namespace')}.svc:{service.get('port') or 443}{path}"


def _trust(config: Object) -> ssl.SSLContext:
    bundle = config.get("caBundle")
    context = ssl.create_default_context(cadata=base64.b64decode(bundle).decode() if bundle else None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
