"""Which cluster a request is for, where that cluster is, and what is asked of it."""

from __future__ import annotations

import re
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from herder.api.management.names import PROXY_PREFIX
from herder.engine.apiserver.request import request_info
from herder.engine.client.wire import Request
from herder.engine.meta.errors import BadRequest, NotFound

PREFIXES = (PROXY_PREFIX, "/k8s/proxy/")

_CLUSTER = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_SENT = re.compile(r"[!-~]+")  # what a request line can carry: no spaces, no control characters, no other alphabet
_UNESCAPED = "/:@!$&'()*+,;=-._~"


@dataclass(frozen=True, slots=True)
class Target:
    """The API of one cluster. Nothing of it is ever used for another cluster."""

    cluster: str
    address: str  # host:port, as seen from where it is dialled
    ca: str = field(repr=False)  # PEM: the only roots that are trusted for it
    token: str = field(default="", repr=False)  # of the agent: for the proxy's own work there, never for a user's
    prefix: str = ""  # of all paths at that address
    disconnected_since: str = ""  # for who asks why it does not answer
    context: ssl.SSLContext | None = field(default=None, repr=False)  # where the CA alone does not make one
    certified_name: str = ""  # where its certificate is for another name than that of its address

    @property
    def server_name(self) -> str:
        return self.certified_name or self.address.rpartition(":")[0].removeprefix("[").removesuffix("]")


TargetOf = Callable[[str], Awaitable[Target]]
"""Where a cluster is. Raises NotFound for an unknown one and ServiceUnavailable for one that cannot be used yet."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request's target, taken apart."""

    cluster: str
    prefix: str  # ours, up to and with the cluster's name
    path: str  # the cluster's own path, escapes as they were sent; begins with a slash
    query: str  # as it was sent, without its question mark

    @property
    def target(self) -> str:
        return f"{self.path}?{self.query}" if self.query else self.path


def asked(request: Request) -> Asked:
    """Raises NotFound for what is no cluster's path, BadRequest for one that would leave its prefix."""
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
    return Asked(cluster, root + cluster, slash + rest or "/", query)


def is_watch(request: Request) -> bool:
    """Whether the API that is asked answers with a watch, however that is written."""
    root = next((root for root in PREFIXES if request.path.startswith(root)), None)
    inside = request.path.removeprefix(root).partition("/")[2] if root else request.path
    return request_info(request.method, inside, request.query).verb == "watch"


def has_dot_segments(path: str) -> bool:
    """Whether a client or server may resolve the path to another one, however the dots are written."""
    return any(part in (".", "..") for part in unquote(path).replace("\\", "/").split("/"))


def is_sendable(target: str) -> bool:
    """Whether it has only characters that a request line carries, and that nobody removes."""
    return _SENT.fullmatch(target) is not None


def _written(request: Request) -> str:
    """The target of a request that never was on a wire."""
    path, query = quote(request.path, safe=_UNESCAPED), str(request.query)
    return f"{path}?{query}" if query else path
