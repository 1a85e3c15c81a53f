"""The API server: the handler chain of every request (authentication, impersonation, authorization, dispatch,
audit)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial

from herder.engine.apiserver.audit import AuditLog, audit_record
from herder.engine.apiserver.auth.access import AccessAttributes, forbidden
from herder.engine.apiserver.auth.authenticate import Authenticator
from herder.engine.apiserver.auth.impersonate import impersonated, wants_impersonation
from herder.engine.apiserver.auth.users import ANONYMOUS
from herder.engine.apiserver.context import ServerDeps
from herder.engine.apiserver.dispatch import Dispatcher, PageNotFound
from herder.engine.apiserver.endpoints.discovery import Discovery
from herder.engine.apiserver.endpoints.health import ENDPOINTS, Check, health
from herder.engine.apiserver.openapi import OpenApi
from herder.engine.apiserver.request.info import RequestInfo, is_long_running, request_info
from herder.engine.apiserver.request.limits import check_body_size
from herder.engine.apiserver.request.negotiation import Rendering, negotiate
from herder.engine.apiserver.response.compression import compress_response
from herder.engine.apiserver.response.render import render_response
from herder.engine.control.supervision import supervised
from herder.engine.meta.errors import InternalError, NotAcceptable, StatusError
from herder.engine.meta.kinds import Object
from herder.engine.wire import Query, Request, Response, User, loggable_path

log = logging.getLogger(__name__)

_MAX_CACHED_PATH = 256

Handler = Callable[[Request, User], Awaitable[Response]]
Background = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class _Caller:
    """The user of a request, for the audit log."""

    user: User = ANONYMOUS
    impersonated: User | None = None

    @property
    def acting(self) -> User:
        return self.impersonated or self.user


class ApiServer:
    """An API server without a listener. Transports call `handle`; `start` and `stop` manage the background tasks."""

    receives_body = True  # after authentication and authorization

    def __init__(
        self,
        deps: ServerDeps,
        *,
        authenticator: Authenticator,
        audit: AuditLog | None = None,
        background: Sequence[Background] = (),
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.deps = deps
        self.authenticator = authenticator
        self.audit = audit
        self.background: list[Background] = list(background)
        self.checks: dict[str, Check] = {"ping": lambda: True, "log": lambda: True, "store": self._store_healthy}
        self.discovery = Discovery(deps.registry)
        self.openapi = OpenApi(deps.registry)
        self._routes: dict[str, Handler] = {}
        self._prefixes: list[tuple[str, Handler]] = []
        self._dispatcher = Dispatcher(deps)
        self._tasks: list[asyncio.Task[None]] = []
        self._close = close
        self._ready = False

    # --- lifecycle --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the background tasks, and report readiness."""
        for run in self.background:
            name = getattr(run, "__qualname__", "background task")
            self._tasks.append(asyncio.ensure_future(supervised(run, name=name)))
        self._ready = True

    async def stop(self) -> None:
        """End watches, stop the background tasks, flush the audit log and close the store."""
        self._ready = False
        self._dispatcher.stopping.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self.audit is not None:
            await asyncio.to_thread(self.audit.close)
        if self._close is not None:
            await self._close()

    def add_route(self, path: str, handler: Handler) -> None:
        """Serve a non-resource path. A path ending in `/` serves everything below it. RBAC applies
        (nonResourceURLs)."""
        if path.endswith("/"):
            self._prefixes.append((path, handler))
        else:
            self._routes[path] = handler

    def _store_healthy(self) -> bool:
        return self.deps.store.failure is None

    # --- one request ------------------------------------------------------------------------------------------

    async def handle(self, request: Request) -> Response:
        """Run the handler chain. Every error becomes a response; nothing is raised."""
        audit_id = self.deps.uid()
        received = self.deps.clock() if self.audit is not None else None
        info, attributes = _parse_request_info(request)
        caller = _Caller()
        failure: Object | None = None
        try:
            response = compress_response(request, await self._run_handler_chain(request, info, attributes, caller))
        except StatusError as error:
            failure = error.to_status()
            response = _error_response(request, error, failure)
        except PageNotFound:
            response = _page_not_found()
        except Exception:
            log.exception("%s %s failed", request.method, loggable_path(request.path))
            unexpected = InternalError("Internal error occurred: see the server's log")
            failure = unexpected.to_status()
            response = _error_response(request, unexpected, failure)
        response.headers["audit-id"] = audit_id
        response.headers.setdefault("cache-control", "no-cache, private")
        if self.audit is not None and received is not None:
            self._audit_request(request, attributes, caller, audit_id, received, response.status, failure)
        return response

    async def _run_handler_chain(
        self, request: Request, info: RequestInfo, attributes: AccessAttributes, caller: _Caller
    ) -> Response:
        await self._authorize(request, info, attributes, caller)
        request.repeat_after_wait(partial(self._authorize, info=info, attributes=attributes, caller=caller))
        revision = self.deps.store.revision
        if not request.has_body:
            await request.receive_body()
            # A right on a name can have ended with its object, and another user can have created one of that name.
            if (latest := self.deps.store.revision) != revision:
                revision = latest
                await request.check_again(asyncio.get_running_loop().time(), is_changed=True)
        check_body_size(len(request.body))
        if request.path.startswith("//"):
            raise PageNotFound
        if info.is_resource_request:
            return await self._dispatcher.dispatch(request, info, caller.acting, revision)
        return await self._handle_non_resource(request, caller.acting)

    async def _authorize(
        self, request: Request, info: RequestInfo, attributes: AccessAttributes, caller: _Caller
    ) -> None:
        """Authenticate the caller, and raise Forbidden unless it may send this request."""
        user = await self.authenticator.authenticate(request)
        caller.user = user or ANONYMOUS
        if await request.admit(user, long_running=is_long_running(request, info)):
            caller.user = await self.authenticator.authenticate(request) or ANONYMOUS
        authorizer = self.deps.authorizer
        if wants_impersonation(request.headers):
            acting = impersonated(request, caller.user, authorizer, attributes)
            caller.impersonated = acting if acting is not caller.user else None
        decision = authorizer.authorize(caller.acting, attributes)
        if not decision.allowed:
            raise forbidden(caller.acting, attributes, decision.reason)

    async def _handle_non_resource(self, request: Request, user: User) -> Response:
        """Handle a non-resource request: health checks, OpenAPI, discovery and registered routes."""
        path = request.path
        if path.startswith(ENDPOINTS):
            checks = self.checks | ({"ready": lambda: self._ready} if path.startswith("/readyz") else {})
            response = health(request, checks)
        elif path.startswith("/openapi"):
            response = await self.openapi.handle(request)
        else:
            response = self.discovery.handle(request)
        if response is not None:
            return response
        handler = self._routes.get(path.rstrip("/") or "/")
        if handler is None:
            handler = next((found for prefix, found in self._prefixes if path.startswith(prefix)), None)
        if handler is None:
            raise PageNotFound
        return await handler(request, user)

    def _audit_request(
        self,
        request: Request,
        attributes: AccessAttributes,
        caller: _Caller,
        audit_id: str,
        received: datetime,
        code: int,
        failure: Object | None,
    ) -> None:
        assert self.audit is not None
        self.audit.record(
            audit_record(
                request,
                attributes,
                caller.user,
                audit_id=audit_id,
                received=received,
                completed=self.deps.clock(),
                code=code,
                impersonated=caller.impersonated,
                status=failure,
            )
        )


def _parse_request_info(request: Request) -> tuple[RequestInfo, AccessAttributes]:
    """Return the request info and authorization attributes. Cached for requests without a query, which repeat the
    same paths."""
    if request.query.items or len(request.path) > _MAX_CACHED_PATH:
        info = request_info(request.method, request.path, request.query)
        return info, _attributes(info)
    return _cached_request_info(request.method, request.path)


@lru_cache(maxsize=1024)
def _cached_request_info(method: str, path: str) -> tuple[RequestInfo, AccessAttributes]:
    info = request_info(method, path, Query())
    return info, _attributes(info)


def _attributes(info: RequestInfo) -> AccessAttributes:
    if not info.is_resource_request:
        return AccessAttributes(verb=info.verb, path=info.path)
    return AccessAttributes(
        verb=info.verb,
        group=info.group,
        version=info.version,
        resource=info.resource,
        subresource=info.subresource,
        namespace=info.namespace,
        name=info.name,
        path=info.path,
    )


def _error_response(request: Request, error: StatusError, status: Object) -> Response:
    try:
        rendering = negotiate(request)
        rendering = Rendering(rendering.media_type, pretty=rendering.pretty)
    except NotAcceptable:
        rendering = Rendering()
    response = render_response(status, rendering, error.code)
    response.headers.update(error.headers)
    response.warnings = getattr(error, "warnings", [])
    return response


def _page_not_found() -> Response:
    headers = {"content-type": "text/plain; charset=utf-8", "x-content-type-options": "nosniff"}
    return Response(404, headers, b"404 page not found\n")
