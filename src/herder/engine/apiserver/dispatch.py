"""Route a resource request to its verb: find the served resource and version, check the path, and run the handler."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from herder.engine.apiserver.compute import SMALLEST_LARGE_BYTES, is_large
from herder.engine.apiserver.context import RequestContext, ServerDeps
from herder.engine.apiserver.registry.resources import Resource, Version
from herder.engine.apiserver.request.info import RequestInfo
from herder.engine.apiserver.request.negotiation import is_yaml, negotiate
from herder.engine.apiserver.request.options import check_timeout
from herder.engine.apiserver.request.yaml_body import LARGE_YAML_BYTES, is_flow
from herder.engine.apiserver.response.watch_events import EventCache
from herder.engine.apiserver.verbs.create import create
from herder.engine.apiserver.verbs.delete import delete
from herder.engine.apiserver.verbs.deletecollection import delete_collection
from herder.engine.apiserver.verbs.get import get
from herder.engine.apiserver.verbs.list import list_objects
from herder.engine.apiserver.verbs.patch import APPLY_PATCH, patch
from herder.engine.apiserver.verbs.scale import get_scale, patch_scale, update_scale
from herder.engine.apiserver.verbs.subresources import call_subresource
from herder.engine.apiserver.verbs.update import update
from herder.engine.apiserver.verbs.watch import watch
from herder.engine.meta.errors import BadRequest, MethodNotAllowed, NotFound, StatusError, UnsupportedMediaType, show
from herder.engine.meta.selectors import SelectorError, parse_field_selector
from herder.engine.wire import Query, Request, Response, User

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
# other subresources may be followed by a path (proxy)
_TERMINAL_SUBRESOURCES = frozenset({"log", "token", "eviction", "binding"})


class Dispatcher:
    """Runs resource requests. `stopping` ends all watches when the server shuts down."""

    def __init__(self, deps: ServerDeps) -> None:
        self._deps = deps
        self._event_cache = EventCache()
        self.stopping = asyncio.Event()

    async def dispatch(self, request: Request, info: RequestInfo, user: User, revision: int) -> Response:
        """`revision`: of the store when the request was authorized."""
        if request.query.items and info.verb != "watch":
            check_timeout(request.query)
        resource, version = self._find_served(info)
        try:
            _check_path(request, info, resource)
        except NotFound:
            raise self._unknown_path_error(info) from None
        begun = asyncio.get_running_loop().time()
        call = RequestContext(
            self._deps,
            request,
            info,
            user,
            resource,
            version,
            negotiate(request, transforms=_supports_tables(resource, info)),
            begun=begun,
            revision=revision,
        )
        if request.body and _prepare_body(call):
            body = await self._deps.executor.convert_yaml(user.name, request.body)
            call.request = replace(request, body=body)
            await call.check_again()  # documents of one user wait for each other
        if version.deprecation:
            call.warn(version.deprecation)
        try:
            if call.large:
                async with self._deps.executor.large_request(user.name):
                    await call.check_again()
                    response = await self._run(call)
            else:
                response = await self._run(call)
        except Exception as error:
            # Warnings collected so far are sent with the error, too.
            error.warnings = call.warnings  # type: ignore[attr-defined]
            raise
        response.warnings = call.warnings
        return response

    def _find_served(self, info: RequestInfo) -> tuple[Resource, Version]:
        found = self._deps.registry.served(info.group, info.version, info.resource)
        if found is None:
            raise self._unknown_path_error(info)
        return found

    def _unknown_path_error(self, info: RequestInfo) -> Exception:
        """The error for an unknown path: built-in groups answer with a Status, groups of CRDs only for paths of
        their own kinds."""
        if any(resource.group == info.group and not resource.custom for resource in self._deps.registry):
            return _not_found_error()
        return PageNotFound()

    async def _run(self, call: RequestContext) -> Response:
        info = call.info
        if info.subresource:
            return await self._run_subresource(call)
        if info.verb not in call.resource.verbs or _rejects_head(call):
            raise _not_allowed()
        if info.verb == "watch":
            return await watch(_with_name_selector(call), self._event_cache, self.stopping)
        return await _VERBS[info.verb](call)

    async def _run_subresource(self, call: RequestContext) -> Response:
        name, verb = call.info.subresource, call.info.verb
        if name in call.resource.subresources:
            subresource = call.resource.subresources[name]
            if call.info.parts and name in _TERMINAL_SUBRESOURCES:
                raise _not_found_error()
            if verb not in subresource.verbs:
                raise _not_allowed()
            return await call_subresource(call, subresource)
        if name == "status" and call.version.status:
            verbs = _STATUS
        elif name == "scale" and call.version.scale is not None:
            verbs = _SCALE
        else:
            raise _not_found_error()
        if call.info.parts and not call.resource.custom:
            raise _not_found_error()
        if verb not in verbs or _rejects_head(call):
            raise _not_allowed()
        return await verbs[verb](call)


class PageNotFound(Exception):
    """No handler serves this path; answered with 404 in plain text, like kube-apiserver does."""


def _prepare_body(call: RequestContext) -> bool:
    """Decide where the body is processed; return True if it is YAML that a subprocess has to convert to JSON."""
    request, size = call.request, len(call.request.body)
    if size < SMALLEST_LARGE_BYTES:
        call.large = call.version.model.compiles_large_schema()
        return False
    applied = request.headers.get("content-type", "").startswith(APPLY_PATCH)
    call.large = is_large(request.body, applied=applied) or call.version.model.compiles_large_schema()
    return size > LARGE_YAML_BYTES and not is_flow(request.body) and (applied or is_yaml(request))


def _rejects_head(call: RequestContext) -> bool:
    """Whether to reject HEAD: kube-apiserver routes built-in kinds by method, but treats HEAD as GET for custom
    resources."""
    return call.request.method == "HEAD" and not call.resource.custom


def _supports_tables(resource: Resource, info: RequestInfo) -> bool:
    """Whether the response can be a Table. Reviews, tokens, bindings and evictions are not listable objects."""
    is_answer = resource.virtual is not None and "list" not in resource.verbs
    return not is_answer and info.subresource not in ("token", "binding", "eviction")


def _check_path(request: Request, info: RequestInfo, resource: Resource) -> None:
    """Check namespace, name and verb of the path. Only collections of namespaced resources can be read across
    namespaces."""
    if "//" in request.path:
        raise _not_found_error()
    named = (
        bool(info.name)
        and info.verb not in ("list", "deletecollection")
        and not (info.verb == "watch" and "/watch/" not in request.path)
    )
    if resource.namespaced:
        if not info.namespace and named and info.verb != "watch":
            raise _not_found_error()
        if not info.namespace and info.verb in ("create", "deletecollection") and resource.virtual is None:
            raise _not_found_error() if resource.custom else _not_allowed()
    elif info.namespace and not (
        resource.plural == "namespaces" and not resource.group and info.name == info.namespace
    ):
        raise _not_found_error()
    if named:
        _check_name(info, resource)
    if not named and info.verb in ("update", "patch", "delete"):
        raise _missing_name_error(request, info, resource)
    if named and info.verb == "create" and not info.subresource and not resource.custom:
        raise _not_allowed()
    if not info.verb:
        raise _not_allowed()


def _check_name(info: RequestInfo, resource: Resource) -> None:
    if resource.virtual is not None and info.verb == "get":
        raise _not_found_error()
    problem = ""
    if info.name in (".", ".."):
        problem = f"may not be '{info.name}'"
    elif "%" in info.name:
        problem = "may not contain '%'"
    if problem:
        raise BadRequest(f"Name parameter invalid: {show(info.name)}: {problem}")


def _missing_name_error(request: Request, info: RequestInfo, resource: Resource) -> StatusError:
    """Return the error for a write to a single object whose path has no name."""
    if not resource.custom:
        return _not_allowed()
    if not info.namespace and resource.namespaced:
        return _not_found_error()
    if info.verb == "patch" and not request.headers.get("content-type"):
        return UnsupportedMediaType(
            "the body of the request was in an unknown format - accepted media types include: "
            "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
        )
    return BadRequest("name must be provided")


def _with_name_selector(call: RequestContext) -> RequestContext:
    """Translate the deprecated `/watch/…/name` to a watch with a field selector.

    The request was authorized for that name, so a selector of the client must not replace it.
    """
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


def _not_found_error() -> NotFound:
    return NotFound("the server could not find the requested resource", details={})


def _not_allowed() -> MethodNotAllowed:
    return MethodNotAllowed("the server does not allow this method on the requested resource", details={})
