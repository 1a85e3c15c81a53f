"""Signature Version 4 of AWS for S3, in the Authorization header."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import quote

ALGORITHM = "AWS4-HMAC-SHA256"
EMPTY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True)
class Credentials:
    access_key: str
    secret_key: str = field(repr=False)
    region: str = "us-east-1"


@dataclass(frozen=True)
class Unsigned:
    """A request before it is signed. `path` is percent-encoded; `query` is not."""

    method: str
    path: str
    query: Sequence[tuple[str, str]]
    headers: Mapping[str, str]
    sha256: str  # of the payload


def timestamp(at: datetime) -> str:
    return at.strftime("%Y%m%dT%H%M%SZ")


def authorization(request: Unsigned, credentials: Credentials, at: datetime) -> str:
    """Return the Authorization header. It covers all headers of the request."""
    scope = f"{at:%Y%m%d}/{credentials.region}/s3/aws4_request"
    headers = {name.lower(): " ".join(value.split()) for name, value in request.headers.items()}
    signed = ";".join(sorted(headers))
    canonical = "\n".join(
        (
            request.method,
            request.path,
            encoded_query(request.query),
            *(f"{name}:{headers[name]}" for name in sorted(headers)),
            "",
            signed,
            request.sha256,
        )
    )
    text = "\n".join((ALGORITHM, timestamp(at), scope, hashlib.sha256(canonical.encode()).hexdigest()))
    signature = _sign(_signing_key(credentials, at), text).hex()
    return f"{ALGORITHM} Credential={credentials.access_key}/{scope},SignedHeaders={signed},Signature={signature}"


def encoded_path(*parts: str) -> str:
    return "/" + "/".join(quote(part, safe="/-_.~") for part in parts if part)


def encoded_query(query: Sequence[tuple[str, str]]) -> str:
    encoded = sorted((quote(key, safe="-_.~"), quote(value, safe="-_.~")) for key, value in query)
    return "&".join(f"{key}={value}" for key, value in encoded)


def _signing_key(credentials: Credentials, at: datetime) -> bytes:
    key = f"AWS4{credentials.secret_key}".encode()
    for part in (f"{at:%Y%m%d}", credentials.region, "s3", "aws4_request"):
        key = _sign(key, part)
    return key


def _sign(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
