"""The token in a request, wherever clients put it: Bearer, Basic or the session's cookie."""

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
_LONGEST = 1024
_LONGEST_COOKIES = 16 << 10
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Credential:
    name: str
    key: str = field(repr=False)  # never in a log or a traceback
    ext: bool = False  # of ext.cattle.io

    @property
    def bearer(self) -> str:
        return f"{_EXT if self.ext else ''}{self.name}:{self.key}"


def credential_of(method: str, headers: Mapping[str, str]) -> Credential | None:
    """What the request shows, or None. A header wins over the cookie, which browsers send unasked."""
    if authorization := headers.get("authorization"):
        return _parsed(_from_authorization(authorization))
    if not _cookie_counts(method, headers):
        return None
    return _parsed(_cookie(headers.get("cookie", "")))


def _from_authorization(header: str) -> str:
    scheme, _, value = header.strip().partition(" ")
    value = value.strip()
    if len(value) > _LONGEST:
        return ""
    match scheme.lower():
        case "bearer":
            return value
        case "basic":
            return _from_basic(value)
        case _:
            return ""


def _from_basic(value: str) -> str:
    """In either alphabet: what base64 calls standard, and the one for URLs."""
    padded = value.translate(str.maketrans("-_", "+/")).rstrip("=")
    try:
        return base64.b64decode(padded + "=" * (-len(padded) % 4), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""


def _cookie_counts(method: str, headers: Mapping[str, str]) -> bool:
    """Browsers send cookies for any page. Where one could do harm, it counts only for pages of our own."""
    harmless = method in _SAFE_METHODS and "upgrade" not in headers
    origin = headers.get("origin")
    if origin is None:
        return harmless or headers.get("sec-fetch-site", "same-origin") in {"same-origin", "none"}
    if len(origin) > _LONGEST:
        return False
    try:
        return urlsplit(origin).netloc.lower() == headers.get("host", "").lower() != ""
    except ValueError:  # not a URL
        return False


def _cookie(header: str) -> str:
    for part in header[:_LONGEST_COOKIES].split(";"):
        name, _, value = part.strip().partition("=")
        if name == SESSION_COOKIE:
            return value.strip('"')[:_LONGEST]
    return ""


def _parsed(text: str) -> Credential | None:
    """`name:key` with exactly one colon; anything else is some other kind of token."""
    name, colon, key = text.partition(":")
    if not colon or not key or ":" in key or not key.isascii():
        return None
    ext = name.startswith(_EXT)
    name = name.removeprefix(_EXT) if ext else name
    return Credential(name, key, ext) if _NAME.fullmatch(name) else None
