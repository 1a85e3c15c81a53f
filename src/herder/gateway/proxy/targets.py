"""Parse cluster paths, and describe the API endpoint of a cluster."""

from __future__ import annotations

import re
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from herder.api.management.names import PROXY_PREFIX
from herder.engine.apiserver.request.info import is_long_running as may_stay_open
from herder.engine.apiserver.request.info import request_info
from herder.engine.meta.errors import BadRequest, NotFound
from herder.engine.wire import Request

PREFIXES = (PROXY_PREFIX, "/k8s/proxy/")

_CLUSTER = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_SENDABLE = re.compile(r"[!-~]+")  # characters allowed in a request line
_UNESCAPED = "/:@!$&'()*+,;=-._~"


@dataclass(frozen=True, slots=True)
class Target:
    """API endpoint of one cluster; never used for another."""

    cluster: str
    address: str  # host:port as seen from the dialing side
    ca: str = field(repr=False)  # PEM; the only trusted roots
    token: str = field(default="", repr=False)  # the agent's, for the proxy's own objects, never for users
    prefix: str = ""  # path prefix at that address
    disconnected_since: str = ""  # for error messages
    context: ssl.SSLContext | None = field(default=None, repr=False)  # overrides the context made from the CA
    certified_name: str = ""  # if the certificate has another name than the address

    @property
    def server_name(self) -> str:
        return self.certified_name or self.address.rpartition(":")[0].removeprefix("[").removesuffix("]")


TargetOf = Callable[[str], Awaitable[Target]]
"""Resolves a cluster. Raises NotFound if unknown, ServiceUnavailable if it cannot be used yet."""


@dataclass(frozen=True, slots=True)
class ClusterPath:
    """A parsed request target."""

    cluster: str
    prefix: str  # our prefix, including the cluster name
    path: str  # path within the cluster, with original escapes and leading slash
    query: str  # original query, without the question mark

    @property
    def target(self) -> str:
        return f"{self.path}?{self.query}" if self.query else self.path


def asked(request: Request) -> ClusterPath:
    """Parse a request target. Raises NotFound for other paths, BadRequest for a path that would leave its prefix."""
    target = request.target or _written(request)
    if not is_sendable(target):
        raise BadRequest("invalid URL: it holds characters that must be percent-encoded")
    path, _, query = target.partition("?")
    root = next((root for root in PREFIXES if path.startswith(root)), None)
    cluster, slash, rest = path.removeprefix(root or "").partition("/")
    if root is None or _CLUSTER.fullmatch(cluster) is None:
        raise NotFound(f"{path}: clusters are served at {PROXY_PREFIX}<cluster>/")
    if has_dot_segments(rest):
        raise BadRequest('invalid URL: the path of a cluster may not contain "." or ".." as a segment')
    return ClusterPath(cluster, root + cluster, slash + rest or "/", query)


def is_long_running(request: Request) -> bool:
    """Whether the request may stay open, such as a watch in any notation. Headers and parameters that clients can add
    to any request do not count: the limit for short requests is lower."""
    root = next((root for root in PREFIXES if request.path.startswith(root)), None)
    inside = "/" + request.path.removeprefix(root).partition("/")[2] if root else request.path
    return may_stay_open(request, request_info(request.method, inside, request.query))


def has_dot_segments(path: str) -> bool:
    """Whether a client or server may resolve the path to another, in any encoding."""
    return any(part in (".", "..") for part in unquote(path).replace("\\", "/").split("/"))


def is_sendable(target: str) -> bool:
    """Whether it contains only characters that are valid in a request line."""
    return _SENDABLE.fullmatch(target) is not None


def _written(request: Request) -> str:
    """Target of a request that did not come over the wire."""
    path, query = quote(request.path, safe=_UNESCAPED), str(request.query)
    return f"{path}?{query}" if query else path
