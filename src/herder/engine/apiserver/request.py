"""What a request asks for, read from its method and path alone.

The path grammar of the Kubernetes API is fixed, so no router is needed: `/api/<version>/…` for the core group and
`/apis/<group>/<version>/…` for all others, then optionally a namespace, a resource, a name and a subresource.
Authorisation, audit and routing all look at the same `RequestInfo`, so they can never disagree about what a path means.
"""

from __future__ import annotations

import msgspec

from herder.engine.client.wire import Query, Request
from herder.engine.meta.kinds import GroupResource
from herder.engine.meta.selectors import SelectorError, parse_field_selector

_VERBS = {"POST": "create", "GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}

# Below /namespaces/<name>/ these are subresources of the namespace itself, all else is a resource inside it.
_NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})

_LONG_RUNNING = frozenset({"attach", "exec", "portforward", "proxy"})  # subresources
_NARROWED_VERBS = frozenset({"list", "watch"})  # rules with resourceNames never grant deletecollection


class RequestInfo(msgspec.Struct, frozen=True, gc=False):
    verb: str  # get, list, watch, create, update, patch, delete, deletecollection; or the HTTP method in lower case
    path: str
    is_resource_request: bool = False
    group: str = ""
    version: str = ""
    namespace: str = ""
    resource: str = ""
    subresource: str = ""
    name: str = ""
    parts: tuple[str, ...] = ()  # what follows the subresource: proxies take a path there

    @property
    def group_resource(self) -> GroupResource:
        return GroupResource(self.group, self.resource)

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


def request_info(method: str, path: str, query: Query) -> RequestInfo:
    """Read a request line. Paths outside the resource grammar answer with the method as their verb."""
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
    if rest[0] == "watch":  # the deprecated prefix that turns a get or list into a watch
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
            # Any value turns it on but these two, as Go's conversion of query parameters has it.
            verb = "watch" if "watch" in query and query.get("watch").lower() not in ("false", "0") else "list"
        elif verb == "delete":
            verb = "deletecollection"
        if verb in _NARROWED_VERBS:
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
    """As kube-apiserver has it: requests that hold their connection for as long as the client likes."""
    if info.verb == "watch" or info.subresource in _LONG_RUNNING:
        return True
    return info.subresource == "log" and request.flows


def _selected_name(query: Query) -> str:
    """A list or watch narrowed by `metadata.name=x` is authorised by that name."""
    text = query.get("fieldSelector")
    if "metadata.name" not in text:
        return ""
    try:
        return parse_field_selector(text).exact("metadata.name") or ""
    except SelectorError:
        return ""
