"""Extract the token of a request: from a Bearer or Basic header, or from the session cookie."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from herder.api.identity.names import SESSION_COOKIE

_EXT = "ext/"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_MAX_LENGTH = 1024
_MAX_COOKIES = 16 << 10
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Credential:
    name: str
    key: str = field(repr=False)  # never logged
    ext: bool = False  # an ext.cattle.io token

    @property
    def bearer(self) -> str:
        return f"{_EXT if self.ext else ''}{self.name}:{self.key}"


def credential_of(method: str, headers: Mapping[str, str]) -> Credential | None:
    """Return the request's credential, or None. A header takes precedence over the cookie, which browsers send on their
    own.
    """
    if authorization := headers.get("authorization"):
        return _parse(_from_authorization(authorization))
    if not _accepts_cookie(method, headers):
        return None
    return _parse(_cookie(headers.get("cookie", "")))


def _from_authorization(header: str) -> str:
    scheme, _, value = header.strip().partition(" ")
    value = value.strip()
    if len(value) > _MAX_LENGTH:
        return ""
    match scheme.lower():
        case "bearer":
            return value
        case "basic":
            return _from_basic(value)
        case _:
            return ""


def _from_basic(value: str) -> str:
    """Decode standard or URL-safe base64."""
    padded = value.translate(str.maketrans("-_", "+/")).rstrip("=")
    try:
        return base64.b64decode(padded + "=" * (-len(padded) % 4), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""


def _accepts_cookie(method: str, headers: Mapping[str, str]) -> bool:
    """Whether the cookie is accepted: unsafe requests must come from our own origin (CSRF protection)."""
    is_safe = method in _SAFE_METHODS and "upgrade" not in headers
    origin = headers.get("origin")
    if origin is None:
        return is_safe or headers.get("sec-fetch-site", "same-origin") in {"same-origin", "none"}
    if len(origin) > _MAX_LENGTH:
        return False
    try:
        return urlsplit(origin).netloc.lower() == headers.get("host", "").lower() != ""
    except ValueError:  # not a URL
        return False


def _cookie(header: str) -> str:
    for part in header[:_MAX_COOKIES].split(";"):
        name, _, value = part.strip().partition("=")
        if name == SESSION_COOKIE:
            return value.strip('"')[:_MAX_LENGTH]
    return ""


def _parse(text: str) -> Credential | None:
    """Parse `name:key` with exactly one colon; anything else is another kind of token."""
    name, colon, key = text.partition(":")
    if not colon or not key or ":" in key or not key.isascii():
        return None
    ext = name.startswith(_EXT)
    name = name.removeprefix(_EXT) if ext else name
    return Credential(name, key, ext) if _NAME.fullmatch(name) else None
