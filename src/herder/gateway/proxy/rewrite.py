"""Rebuild requests for clusters and responses for callers from an allowlist of headers.

Hop-by-hop headers are removed first and identity is added last, so that no header of the caller can remove it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

from herder.engine.meta.errors import BadRequest, Unauthorized
from herder.engine.wire import Request, Response, User
from herder.gateway.proxy.impersonation.identity import impersonation
from herder.gateway.proxy.targets import ClusterPath, Target, has_dot_segments, is_sendable

_FORWARDED_HEADERS = frozenset({
    "accept", "accept-encoding", "accept-language", "audit-id", "cache-control", "content-type", "if-match",
    "if-modified-since", "if-none-match", "if-range", "if-unmodified-since", "kubectl-command", "kubectl-session",
    "range", "traceparent", "tracestate", "user-agent",
})  # fmt: skip
_UPGRADE_HEADERS = frozenset({
    "sec-websocket-extensions", "sec-websocket-key", "sec-websocket-protocol", "sec-websocket-version",
    "x-stream-protocol-version",
})  # fmt: skip
_RESPONSE_HEADERS = frozenset({
    "accept-patch", "accept-ranges", "audit-id", "cache-control", "content-disposition", "content-encoding",
    "content-range", "content-type", "etag", "expires", "last-modified", "retry-after", "vary", "warning",
    "x-kubernetes-pf-flowschema-uid", "x-kubernetes-pf-prioritylevel-uid",
})  # fmt: skip
_UPGRADE_RESPONSE_HEADERS = frozenset({
    "sec-websocket-accept", "sec-websocket-extensions", "sec-websocket-protocol", "x-stream-protocol-version",
})  # fmt: skip

_PROTOCOLS = {"websocket": "websocket", "spdy/3.1": "SPDY/3.1"}
_BEARER_PROTOCOL = "base64url.bearer.authorization.k8s.io."  # how browsers send a bearer token, which is the manager's
_IDENTITY = ("authorization", "cookie", "impersonate-", "x-remote-")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_SAFE_PAGES = {"content-security-policy": "sandbox", "x-content-type-options": "nosniff"}
"""Pages from a cluster are shown under our origin and must not gain its privileges."""

Headers = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request to a cluster."""

    method: str
    target: str  # encoded path and query
    headers: Headers = field(repr=False)
    body: bytes = field(default=b"", repr=False)

    def head(self) -> bytes:
        lines = [f"{self.method} {self.target} HTTP/1.1"]
        for name, value in self.headers:
            if _CONTROL.search(name) or _CONTROL.search(value):
                raise BadRequest(f"header {name!r}: control characters are not allowed")
            lines.append(f"{name}: {value}")
        return "\r\n".join([*lines, "", ""]).encode()


def impersonated_request(
    request: Request, asked: ClusterPath, target: Target, user: User, authorization: str, *, upgrade: str = ""
) -> Outgoing:
    """The request as `user`, sent with `authorization`. `upgrade` is the requested protocol."""
    identity = impersonation(user)
    if authorization:  # Otherwise the client certificate of the connection authenticates.
        identity.append(("authorization", authorization))
    return _rebuild(request, asked, target, identity, upgrade)


def forwarded_request(
    request: Request, asked: ClusterPath, target: Target, authorization: str, *, upgrade: str = ""
) -> Outgoing:
    """The request with the caller's own `authorization`, which is required: otherwise it would be sent with the
    identity of the connection."""
    if not authorization:
        raise Unauthorized("must authenticate")
    return _rebuild(request, asked, target, [("authorization", authorization)], upgrade)


def _rebuild(request: Request, asked: ClusterPath, target: Target, identity: Headers, upgrade: str) -> Outgoing:
    headers: Headers = [("host", target.address)]
    headers += _end_to_end(request.headers, upgrade)
    if upgrade:
        headers += [("connection", "Upgrade"), ("upgrade", upgrade)]
        if "origin" in request.headers:  # Already checked here; API servers expect one from browsers.
            headers.append(("origin", f"https://{target.address}"))
    if request.body or request.method in ("POST", "PUT", "PATCH"):
        headers.append(("content-length", str(len(request.body))))
    return Outgoing(request.method, target.prefix + asked.target, headers + identity, request.body)


def requested_upgrade(headers: Mapping[str, str]) -> str:
    """The requested protocol if Kubernetes supports it, else ""."""
    if "upgrade" not in _tokens(headers.get("connection", "")):
        return ""
    return next((_PROTOCOLS[word] for word in _tokens(headers.get("upgrade", "")) if word in _PROTOCOLS), "")


def check_connection(headers: Mapping[str, str]) -> None:
    """Refuse Connection headers that name identity headers, which would remove them on the way."""
    for name in _tokens(headers.get("connection", "")):
        if name.startswith(_IDENTITY):
            raise BadRequest(f"header Connection: may not name {name}")


def _end_to_end(headers: Mapping[str, str], upgrade: str) -> Headers:
    one_hop = _tokens(headers.get("connection", ""))
    allowed = (_FORWARDED_HEADERS | _UPGRADE_HEADERS if upgrade else _FORWARDED_HEADERS) - one_hop
    kept: Headers = []
    for name, value in headers.items():
        if name in allowed:
            kept += [(name, part) for part in _parts(name, value)]
    return kept


def _parts(name: str, value: str) -> Iterable[str]:
    """Split headers that must not be joined, and drop values that are not meant for the cluster."""
    if name == "x-stream-protocol-version":
        return [part for part in value.split(", ") if part]
    if name == "sec-websocket-protocol":
        offered = [word.strip() for word in value.split(",")]
        spoken = [word for word in offered if word and not word.startswith(_BEARER_PROTOCOL)]
        return [", ".join(spoken)] if spoken else []
    return [value]


def response_headers(headers: Headers, asked: ClusterPath) -> dict[str, str]:
    """Response headers; repeated ones are joined."""
    kept: dict[str, str] = {}
    for name, value in headers:
        if name == "location":
            value = _location(value, asked)
        if value and (name in _RESPONSE_HEADERS or name == "location"):
            kept[name] = f"{kept[name]}, {value}" if name in kept else value
    return kept | _SAFE_PAGES


def forbid_caching(response: Response) -> Response:
    """Errors depend on the credentials and on the moment. Servers that set the header, such as kube-apiserver, know
    better."""
    if response.status >= HTTPStatus.BAD_REQUEST:
        response.headers.setdefault("cache-control", "no-store")
    return response


def switching_head(headers: Headers, protocol: str) -> bytes:
    """Head of a 101 response."""
    lines = ["HTTP/1.1 101 Switching Protocols", "Connection: Upgrade", f"Upgrade: {protocol}"]
    lines += [f"{name.title()}: {value}" for name, value in headers if name in _UPGRADE_RESPONSE_HEADERS]
    return "\r\n".join([*lines, "", ""]).encode()


def _location(value: str, asked: ClusterPath) -> str:
    """Keep redirects within the cluster and drop others.

    Clients resolve dot segments before they follow a redirect with the user's credentials, and repeat writes after 307
    and 308.
    """
    path = re.split("[?#]", value, maxsplit=1)[0]
    is_own = path.startswith("/") and not path.startswith("//") and is_sendable(value) and not has_dot_segments(path)
    return asked.prefix + value if is_own else ""


def _tokens(value: str) -> frozenset[str]:
    return frozenset(word.strip().lower() for word in value.split(",") if word.strip())
