"""Parse method and path of a request to a RequestInfo.

The path grammar of the Kubernetes API is fixed, so no router is needed: `/api/<version>/…` for the core group and
`/apis/<group>/<version>/…` for all others, then optionally a namespace, a resource, a name and a subresource.
Authorization, audit and routing use the same `RequestInfo`, so they always agree about the meaning of a path.
"""

from __future__ import annotations

import msgspec

from herder.engine.meta.kinds import GroupResource
from herder.engine.meta.selectors import SelectorError, parse_field_selector
from herder.engine.wire import Query, Request

_VERBS = {"POST": "create", "GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}

# Below /namespaces/<name>/ these are subresources of the namespace; everything else is a resource in it.
_NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})

_LONG_RUNNING = frozenset({"attach", "exec", "portforward", "proxy"})  # subresources
_NAME_SELECTING_VERBS = frozenset({"list", "watch"})  # not deletecollection: rules with resourceNames never grant it


class RequestInfo(msgspec.Struct, frozen=True, gc=False):
    """What a request is for (request.RequestInfo in Kubernetes)."""

    verb: str  # get, list, watch, create, update, patch, delete, deletecollection; or the HTTP method in lower case
    path: str
    is_resource_request: bool = False
    group: str = ""
    version: str = ""
    namespace: str = ""
    resource: str = ""
    subresource: str = ""
    name: str = ""
    parts: tuple[str, ...] = ()  # path segments after the subresource, for proxies

    @property
    def group_resource(self) -> GroupResource:
        return GroupResource(self.group, self.resource)

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


def request_info(method: str, path: str, query: Query) -> RequestInfo:
    """Parse a request line. Paths outside the resource grammar get the HTTP method in lower case as verb."""
    other = RequestInfo(verb=method.lower(), path=path)
    parts = [part for part in path.split("/") if part]
    if len(parts) < 3 or parts[0] not in ("api", "apis"):
        return other
    if parts[0] == "apis":
        if len(parts) < 4:
            return other
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        group, version, rest = "", parts[1], parts[2:]

    verb = _VERBS.get(method, "")
    if rest[0] == "watch":  # deprecated prefix that turns a get or list into a watch
        if len(rest) < 2:
            return other
        verb, rest = "watch", rest[1:]

    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 1:
        namespace = rest[1]
        if len(rest) > 2 and rest[2] not in _NAMESPACE_SUBRESOURCES:
            rest = rest[2:]
    resource = rest[0]
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""

    if not name:
        if verb == "get":
            verb = "watch" if query.enabled("watch") else "list"
        elif verb == "delete":
            verb = "deletecollection"
        if verb in _NAME_SELECTING_VERBS:
            name = _selected_name(query)
    return RequestInfo(
        verb=verb,
        path=path,
        is_resource_request=True,
        group=group,
        version=version,
        namespace=namespace,
        resource=resource,
        subresource=subresource,
        name=name,
        parts=tuple(rest[3:]),
    )


def is_long_running(request: Request, info: RequestInfo) -> bool:
    """Whether the request may stay open as long as the client wants, by kube-apiserver's rules."""
    if info.verb == "watch" or info.subresource in _LONG_RUNNING:
        return True
    return info.subresource == "log" and request.is_streaming


def _selected_name(query: Query) -> str:
    """Return the name that a list or watch with `metadata.name=x` is authorized for."""
    text = query.get("fieldSelector")
    if "metadata.name" not in text:
        return ""
    try:
        return parse_field_selector(text).exact("metadata.name") or ""
    except SelectorError:
        return ""
