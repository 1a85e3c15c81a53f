"""From a resource request to its verb: what exists, what may be done with it, who does it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from herder.engine.apiserver.compute import SMALLEST_LARGE_BYTES, is_large
from herder.engine.apiserver.events import SharedLines
from herder.engine.apiserver.negotiation import is_yaml, negotiate
from herder.engine.apiserver.options import check_timeout
from herder.engine.apiserver.request import RequestInfo
from herder.engine.apiserver.resources import Resource, Version
from herder.engine.apiserver.scope import RequestContext, ServerDeps
from herder.engine.apiserver.verbs.create import create
from herder.engine.apiserver.verbs.delete import delete
from herder.engine.apiserver.verbs.deletecollection import delete_collection
from herder.engine.apiserver.verbs.get import get
from herder.engine.apiserver.verbs.listing import list_objects
from herder.engine.apiserver.verbs.patch import APPLY_PATCH, patch
from herder.engine.apiserver.verbs.scale import get_scale, patch_scale, update_scale
from herder.engine.apiserver.verbs.subresources import call_subresource
from herder.engine.apiserver.verbs.update import update
from herder.engine.apiserver.verbs.watch import watch
from herder.engine.apiserver.yaml_bodies import LARGE_YAML_BYTES, is_flow
from herder.engine.client.wire import Query, Request, Response, User
from herder.engine.meta.errors import BadRequest, MethodNotAllowed, NotFound, StatusError, UnsupportedMediaType, show
from herder.engine.meta.selectors import SelectorError, parse_field_selector

_VERBS = {
    "get": get,
    "list": list_objects,
    "create": create,
    "update": update,
    "patch": patch,
    "delete": delete,
    "deletecollection": delete_collection,
}
_STATUS = {"get": get, "update": update, "patch": patch}
_SCALE = {"get": get_scale, "update": update_scale, "patch": patch_scale}
_ENDS_OF_PATHS = frozenset({"log", "token", "eviction", "binding"})  # others may take a path of their own


class Dispatcher:
    def __init__(self, parts: ServerDeps) -> None:
        self._parts = parts
        self._shared_lines = SharedLines()
        self.stopping = asyncio.Event()

    async def dispatch(self, request: Request, info: RequestInfo, user: User) -> Response:
        if request.query.items and info.verb != "watch":
            check_timeout(request.query)
        resource, version = self._served(info)
        try:
            _check_path(request, info, resource)
        except NotFound:
            raise self._missing(info) from None
        call = RequestContext(
            self._parts,
            request,
            info,
            user,
            resource,
            version,
            negotiate(request, transforms=_has_columns(resource, info)),
        )
        if request.body and _prepare_body(call):
            body = await self._parts.computer.convert_yaml(user.name, request.body)
            call.request = replace(request, body=body)
        if version.deprecation:
            call.warn(version.deprecation)
        try:
            if call.large:
                async with self._parts.computer.large_request(user.name):
                    response = await self._run(call)
            else:
                response = await self._run(call)
        except Exception as error:
            # Warnings given so far go out with the refusal too.
            error.warnings = call.warnings  # type: ignore[attr-defined]
            raise
        response.warnings = call.warnings
        return response

    def _served(self, info: RequestInfo) -> tuple[Resource, Version]:
        found = self._parts.registry.served(info.group, info.version, info.resource)
        if found is None:
            raise self._missing(info)
        return found

    def _missing(self, info: RequestInfo) -> Exception:
        """A group of built-in kinds answers for every path below it; one made of definitions for its kinds' alone."""
        if any(resource.group == info.group and not resource.custom for resource in self._parts.registry):
            return _unknown()
        return PageNotFound()

    async def _run(self, call: RequestContext) -> Response:
        info = call.info
        if info.subresource:
            return await self._run_subresource(call)
        if info.verb not in call.resource.verbs or _is_refused_head(call):
            raise _not_allowed()
        if info.verb == "watch":
            return await watch(_narrowed(call), self._shared_lines, self.stopping)
        return await _VERBS[info.verb](call)

    async def _run_subresource(self, call: RequestContext) -> Response:
        name, verb = call.info.subresource, call.info.verb
        if name in call.resource.subresources:
            subresource = call.resource.subresources[name]
            if call.info.parts and name in _ENDS_OF_PATHS:
                raise _unknown()
            if verb not in subresource.verbs:
                raise _not_allowed()
            return await call_subresource(call, subresource)
        if name == "status" and call.version.status:
            verbs = _STATUS
        elif name == "scale" and call.version.scale is not None:
            verbs = _SCALE
        else:
            raise _unknown()
        if call.info.parts and not call.resource.custom:
            raise _unknown()
        if verb not in verbs or _is_refused_head(call):
            raise _not_allowed()
        return await verbs[verb](call)


class PageNotFound(Exception):
    """A path that nobody serves: answered in plain text, as a web server would."""


def _prepare_body(call: RequestContext) -> bool:
    """Decide where to compute with the body; True if it is YAML to be converted to JSON in a process of its own."""
    request, size = call.request, len(call.request.body)
    if size < SMALLEST_LARGE_BYTES:
        call.large = call.version.model.compiles_much()
        return False
    applied = request.headers.get("content-type", "").startswith(APPLY_PATCH)
    call.large = is_large(request.body, applied=applied) or call.version.model.compiles_much()
    return size > LARGE_YAML_BYTES and not is_flow(request.body) and (applied or is_yaml(request))


def _is_refused_head(call: RequestContext) -> bool:
    """As on the real server, which routes built-in kinds by method, and takes HEAD for a GET on custom ones."""
    return call.request.method == "HEAD" and not call.resource.custom


def _has_columns(resource: Resource, info: RequestInfo) -> bool:
    """Reviews, tokens and bindings are answers, not objects that anyone would list."""
    is_answer = resource.virtual is not None and "list" not in resource.verbs
    return not is_answer and info.subresource not in ("token", "binding", "eviction")


def _check_path(request: Request, info: RequestInfo, resource: Resource) -> None:
    """A namespaced resource is read across namespaces as a whole, but its objects have a namespace each."""
    if "//" in request.path:
        raise _unknown()
    named = (
        bool(info.name)
        and info.verb not in ("list", "deletecollection")
        and not (info.verb == "watch" and "/watch/" not in request.path)
    )
    if resource.namespaced:
        if not info.namespace and named and info.verb != "watch":
            raise _unknown()
        if not info.namespace and info.verb in ("create", "deletecollection") and resource.virtual is None:
            raise _unknown() if resource.custom else _not_allowed()
    elif info.namespace and not (
        resource.plural == "namespaces" and not resource.group and info.name == info.namespace
    ):
        raise _unknown()
    if named:
        _check_name(info, resource)
    if not named and info.verb in ("update", "patch", "delete"):
        raise _nameless(request, info, resource)
    if named and info.verb == "create" and not info.subresource and not resource.custom:
        raise _not_allowed()
    if not info.verb:
        raise _not_allowed()


def _check_name(info: RequestInfo, resource: Resource) -> None:
    if resource.virtual is not None and info.verb == "get":
        raise _unknown()
    complaint = ""
    if info.name in (".", ".."):
        complaint = f"may not be '{info.name}'"
    elif "%" in info.name:
        complaint = "may not contain '%'"
    if complaint:
        raise BadRequest(f"Name parameter invalid: {show(info.name)}: {complaint}")


def _nameless(request: Request, info: RequestInfo, resource: Resource) -> StatusError:
    """What is said of a write to one object that names none."""
    if not resource.custom:
        return _not_allowed()
    if not info.namespace and resource.namespaced:
        return _unknown()
    if info.verb == "patch" and not request.headers.get("content-type"):
        return UnsupportedMediaType(
            "the body of the request was in an unknown format - accepted media types include: "
            "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
        )
    return BadRequest("name must be provided")


def _narrowed(call: RequestContext) -> RequestContext:
    """The deprecated `/watch/…/name` is a watch with a field selector. The name is what was granted: no selector of
    the caller's takes its place."""
    name = call.info.name
    if not name or "/watch/" not in call.request.path:
        return call
    given = call.request.query.get("fieldSelector")
    if given and _exact_name(given) != name:
        raise BadRequest("fieldSelector metadata.name doesn't match requested name")
    items = [item for item in call.request.query.items if item[0] != "fieldSelector"]
    items.append(("fieldSelector", given or f"metadata.name={name}"))
    return replace(call, request=replace(call.request, query=Query(items)))


def _exact_name(selector: str) -> str | None:
    try:
        return parse_field_selector(selector).exact("metadata.name")
    except SelectorError:
        return None


def _unknown() -> NotFound:
    return NotFound("the server could not find the requested resource", details={})


def _not_allowed() -> MethodNotAllowed:
    return MethodNotAllowed("the server does not allow this method on the requested resource", details={})
