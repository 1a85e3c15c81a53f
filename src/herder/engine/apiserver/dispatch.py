"""From a resource request to its verb: what exists, what may be done with it, who does it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from herder.engine.apiserver.events import SharedLines
from herder.engine.apiserver.negotiation import negotiate
from herder.engine.apiserver.request import RequestInfo
from herder.engine.apiserver.resources import Resource, Version
from herder.engine.apiserver.scope import Call, Parts
from herder.engine.apiserver.verbs.create import create
from herder.engine.apiserver.verbs.delete import delete
from herder.engine.apiserver.verbs.deletecollection import delete_collection
from herder.engine.apiserver.verbs.get import get
from herder.engine.apiserver.verbs.listing import list_objects
from herder.engine.apiserver.verbs.patch import patch
from herder.engine.apiserver.verbs.scale import get_scale, patch_scale, update_scale
from herder.engine.apiserver.verbs.subresources import call_subresource
from herder.engine.apiserver.verbs.update import update
from herder.engine.apiserver.verbs.watch import watch
from herder.engine.client.wire import Query, Request, Response, User
from herder.engine.meta.errors import MethodNotAllowed, NotFound

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


class Dispatcher:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._shared_lines = SharedLines()
        self.stopping = asyncio.Event()

    async def dispatch(self, request: Request, info: RequestInfo, user: User) -> Response:
        resource, version = self._served(info)
        _check_path(request, info, resource)
        call = Call(
            self._parts,
            request,
            info,
            user,
            resource,
            version,
            negotiate(request, transforms=_has_columns(resource, info)),
        )
        if version.deprecation:
            call.warn(version.deprecation)
        try:
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
            if info.group and not self._parts.registry.serves_group_version(info.group, info.version):
                raise PageNotFound
            raise _unknown()
        return found

    async def _run(self, call: Call) -> Response:
        info = call.info
        if info.subresource:
            return await self._run_subresource(call)
        if info.verb not in call.resource.verbs or call.request.method == "HEAD":
            raise _not_allowed()
        if info.verb == "watch":
            return await watch(_narrowed(call), self._shared_lines, self.stopping)
        return await _VERBS[info.verb](call)

    async def _run_subresource(self, call: Call) -> Response:
        name, verb = call.info.subresource, call.info.verb
        if name in call.resource.subresources:
            subresource = call.resource.subresources[name]
            if verb not in subresource.verbs:
                raise _not_allowed()
            return await call_subresource(call, subresource)
        if name == "status" and call.version.status:
            verbs = _STATUS
        elif name == "scale" and call.version.scale is not None:
            verbs = _SCALE
        else:
            raise _unknown()
        if verb not in verbs or call.info.parts or call.request.method == "HEAD":
            raise _not_allowed()
        return await verbs[verb](call)


class PageNotFound(Exception):
    """A path that nobody serves: answered in plain text, as a web server would."""


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
            raise _not_allowed()
    elif info.namespace and not (resource.plural == "namespaces" and not resource.group):
        raise _unknown()
    if not named and info.verb in ("update", "patch", "delete"):
        raise _not_allowed()
    if named and info.verb == "create" and not info.subresource:
        raise _not_allowed()
    if not info.verb:
        raise _not_allowed()


def _narrowed(call: Call) -> Call:
    """The deprecated `/watch/…/name` is a watch with a field selector."""
    if not call.info.name or "/watch/" not in call.request.path:
        return call
    items = [*call.request.query.items, ("fieldSelector", f"metadata.name={call.info.name}")]
    return replace(call, request=replace(call.request, query=Query(items)))


def _unknown() -> NotFound:
    return NotFound("the server could not find the requested resource", details={})


def _not_allowed() -> MethodNotAllowed:
    return MethodNotAllowed("the server does not allow this method on the requested resource", details={})
