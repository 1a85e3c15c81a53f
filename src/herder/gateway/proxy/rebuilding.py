"""Requests as a cluster gets them, and its answers as the caller does: written anew from what is known to be harmless.

Nothing passes because nobody thought of it. What belongs to one hop goes first, then comes identity; so no header of
the caller can take away what is put in here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from herder.engine.client.wire import Request, User
from herder.engine.meta.errors import BadRequest, Unauthorized
from herder.gateway.proxy.acting import impersonation
from herder.gateway.proxy.targets import Asked, Target, has_dot_segments, is_sendable

_PASSED_ON = frozenset({
    "accept", "accept-encoding", "accept-language", "audit-id", "cache-control", "content-type", "if-match",
    "if-modified-since", "if-none-match", "if-range", "if-unmodified-since", "kubectl-command", "kubectl-session",
    "range", "traceparent", "tracestate", "user-agent",
})  # fmt: skip
_FOR_UPGRADES = frozenset({
    "sec-websocket-extensions", "sec-websocket-key", "sec-websocket-protocol", "sec-websocket-version",
    "x-stream-protocol-version",
})  # fmt: skip
_ANSWERED = frozenset({
    "accept-patch", "accept-ranges", "audit-id", "cache-control", "content-disposition", "content-encoding",
    "content-range", "content-type", "etag", "expires", "last-modified", "retry-after", "vary", "warning",
    "x-kubernetes-pf-flowschema-uid", "x-kubernetes-pf-prioritylevel-uid",
})  # fmt: skip
_ANSWERED_UPGRADES = frozenset({
    "sec-websocket-accept", "sec-websocket-extensions", "sec-websocket-protocol", "x-stream-protocol-version",
})  # fmt: skip

_PROTOCOLS = {"websocket": "websocket", "spdy/3.1": "SPDY/3.1"}
_BEARER_PROTOCOL = "base64url.bearer.authorization.k8s.io."  # how browsers send a token: ours, not the cluster's
_IDENTITY = ("authorization", "cookie", "impersonate-", "x-remote-")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_SAFE_PAGES = {"content-security-policy": "sandbox", "x-content-type-options": "nosniff"}
"""A page out of a cluster is shown at our address, and must have no part in what a browser may do there."""

Headers = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One request to a cluster."""

    method: str
    target: str  # path and query, encoded
    headers: Headers = field(repr=False)
    body: bytes = field(default=b"", repr=False)

    def head(self) -> bytes:
        lines = [f"{self.method} {self.target} HTTP/1.1"]
        for name, value in self.headers:
            if _CONTROL.search(name) or _CONTROL.search(value):
                raise BadRequest(f"header {name!r}: control characters are not allowed")
            lines.append(f"{name}: {value}")
        return "\r\n".join([*lines, "", ""]).encode()


def rebuilt(
    request: Request, asked: Asked, target: Target, user: User, authorization: str, *, upgrade: str = ""
) -> Outgoing:
    """The request as `user`, sent by the holder of `authorization`. `upgrade`: the protocol to change to."""
    identity = impersonation(user)
    if authorization:  # else the connection itself has proved who holds it, by a certificate
        identity.append(("authorization", authorization))
    return _written_anew(request, asked, target, identity, upgrade)


def passed_on(request: Request, asked: Asked, target: Target, authorization: str, *, upgrade: str = "") -> Outgoing:
    """The request as whoever the cluster itself knows by `authorization`. There must be one: without, it would be the
    request of whoever holds the connection."""
    if not authorization:
        raise Unauthorized("must authenticate")
    return _written_anew(request, asked, target, [("authorization", authorization)], upgrade)


def _written_anew(request: Request, asked: Asked, target: Target, identity: Headers, upgrade: str) -> Outgoing:
    headers: Headers = [("host", target.address)]
    headers += _end_to_end(request.headers, upgrade)
    if upgrade:
        headers += [("connection", "Upgrade"), ("upgrade", upgrade)]
        if "origin" in request.headers:  # was judged here; API servers want to see one where a browser would send one
            headers.append(("origin", f"https://{target.address}"))
    if request.body or request.method in ("POST", "PUT", "PATCH"):
        headers.append(("content-length", str(len(request.body))))
    return Outgoing(request.method, target.prefix + asked.target, headers + identity, request.body)


def requested_upgrade(headers: Mapping[str, str]) -> str:
    """The protocol that a request asks for, where it is one of those that Kubernetes speaks; else ""."""
    if "upgrade" not in _tokens(headers.get("connection", "")):
        return ""
    return next((_PROTOCOLS[word] for word in _tokens(headers.get("upgrade", "")) if word in _PROTOCOLS), "")


def check_connection(headers: Mapping[str, str]) -> None:
    """A caller's identity belongs to no single hop. Who says so wants it to disappear on the way."""
    for name in _tokens(headers.get("connection", "")):
        if name.startswith(_IDENTITY):
            raise BadRequest(f"header Connection: may not name {name}")


def _end_to_end(headers: Mapping[str, str], upgrade: str) -> Headers:
    one_hop = _tokens(headers.get("connection", ""))
    allowed = (_PASSED_ON | _FOR_UPGRADES if upgrade else _PASSED_ON) - one_hop
    kept: Headers = []
    for name, value in headers.items():
        if name in allowed:
            kept += [(name, part) for part in _parts(name, value)]
    return kept


def _parts(name: str, value: str) -> Iterable[str]:
    """A header as it was sent where its parts must not come joined, and without what is not meant for the cluster."""
    if name == "x-stream-protocol-version":
        return [part for part in value.split(", ") if part]
    if name == "sec-websocket-protocol":
        offered = [word.strip() for word in value.split(",")]
        spoken = [word for word in offered if word and not word.startswith(_BEARER_PROTOCOL)]
        return [", ".join(spoken)] if spoken else []
    return [value]


def answered(headers: Headers, asked: Asked) -> dict[str, str]:
    """The headers of an answer; those that came more than once joined."""
    kept: dict[str, str] = {}
    for name, value in headers:
        if name == "location":
            value = _location(value, asked)
        if value and (name in _ANSWERED or name == "location"):
            kept[name] = f"{kept[name]}, {value}" if name in kept else value
    return kept | _SAFE_PAGES


def switching(headers: Headers, protocol: str) -> bytes:
    """The head of an answer that changes the protocol."""
    lines = ["HTTP/1.1 101 Switching Protocols", "Connection: Upgrade", f"Upgrade: {protocol}"]
    lines += [f"{name.title()}: {value}" for name, value in headers if name in _ANSWERED_UPGRADES]
    return "\r\n".join([*lines, "", ""]).encode()


def _location(value: str, asked: Asked) -> str:
    """A redirect stays in its cluster; one to elsewhere is dropped. Clients resolve dot segments before they follow it,
    with the user's credentials, and repeat writes after 307 and 308."""
    path = re.split("[?#]", value, maxsplit=1)[0]
    is_own = path.startswith("/") and not path.startswith("//") and is_sendable(value) and not has_dot_segments(path)
    return asked.prefix + value if is_own else ""


def _tokens(value: str) -> frozenset[str]:
    return frozenset(word.strip().lower() for word in value.split(",") if word.strip())
