"""The road of every request, whoever carries it: who asks, may they, what do they want, what are they told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from herder.engine.apiserver.audit import AuditLog, finished
from herder.engine.apiserver.auth.access import AccessAttributes, forbidden
from herder.engine.apiserver.auth.authenticate import Authenticator
from herder.engine.apiserver.auth.impersonate import impersonated, wants_impersonation
from herder.engine.apiserver.auth.users import ANONYMOUS
from herder.engine.apiserver.compression import compressed
from herder.engine.apiserver.discovery import Discovery
from herder.engine.apiserver.dispatch import Dispatcher, PageNotFound
from herder.engine.apiserver.health import ENDPOINTS, Check, health
from herder.engine.apiserver.limits import check_body_size
from herder.engine.apiserver.negotiation import Rendering, negotiate
from herder.engine.apiserver.openapi import OpenApi
from herder.engine.apiserver.rendering import answer
from herder.engine.apiserver.request import RequestInfo, is_long_running, request_info
from herder.engine.apiserver.scope import ServerDeps
from herder.engine.client.wire import Query, Request, Response, User, loggable_path
from herder.engine.control.supervision import supervised
from herder.engine.meta.errors import InternalError, NotAcceptable, StatusError
from herder.engine.meta.kinds import Object

log = logging.getLogger(__name__)

_LONGEST_REMEMBERED = 256

Handler = Callable[[Request, User], Awaitable[Response]]
Background = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class _Caller:
    """Who the audit log will name."""

    user: User = ANONYMOUS
    impersonated: User | None = None

    @property
    def acting(self) -> User:
        return self.impersonated or self.user


class ApiServer:
    """`handle` is all that a front needs. `start` and `stop` bracket the tasks that run beside requests."""

    receives_body = True  # once the sender is authenticated and authorized

    def __init__(
        self,
        parts: ServerDeps,
        *,
        authenticator: Authenticator,
        audit: AuditLog | None = None,
        background: Sequence[Background] = (),
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.parts = parts
        self.authenticator = authenticator
        self.audit = audit
        self.background: list[Background] = list(background)
        self.checks: dict[str, Check] = {"ping": lambda: True, "log": lambda: True, "store": self._store_works}
        self.discovery = Discovery(parts.registry)
        self.openapi = OpenApi(parts.registry)
        self._routes: dict[str, Handler] = {}
        self._prefixes: list[tuple[str, Handler]] = []
        self._dispatcher = Dispatcher(parts)
        self._tasks: list[asyncio.Task[None]] = []
        self._close = close
        self._ready = False

    # --- life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        for run in self.background:
            name = getattr(run, "__qualname__", "background task")
            self._tasks.append(asyncio.ensure_future(supervised(run, name=name)))
        self._ready = True

    async def stop(self) -> None:
        """End watches, stop the background tasks, then close the store."""
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
        """Serve a path of one's own; one that ends in `/` serves everything below it. RBAC applies."""
        if path.endswith("/"):
            self._prefixes.append((path, handler))
        else:
            self._routes[path] = handler

    def _store_works(self) -> bool:
        return self.parts.store.failure is None

    # --- one request ------------------------------------------------------------------------------------------

    async def handle(self, request: Request) -> Response:
        audit_id = self.parts.uid()
        received = self.parts.clock() if self.audit is not None else None
        info, attributes = _parse_request_info(request)
        caller = _Caller()
        failure: Object | None = None
        try:
            response = compressed(request, await self._run_handler_chain(request, info, attributes, caller))
        except StatusError as error:
            failure = error.to_status()
            response = _refused(request, error, failure)
        except PageNotFound:
            response = _page_not_found()
        except Exception:
            log.exception("%s %s failed", request.method, loggable_path(request.path))
            unexpected = InternalError("Internal error occurred: the server's log tells more")
            failure = unexpected.to_status()
            response = _refused(request, unexpected, failure)
        response.headers["audit-id"] = audit_id
        response.headers.setdefault("cache-control", "no-cache, private")
        if self.audit is not None and received is not None:
            self._record(request, attributes, caller, audit_id, received, response.status, failure)
        return response

    async def _run_handler_chain(
        self, request: Request, info: RequestInfo, attributes: AccessAttributes, caller: _Caller
    ) -> Response:
        user = await self.authenticator.authenticate(request)
        caller.user = user or ANONYMOUS
        if request.incoming is not None:
            await request.incoming.admit(user, long_running=is_long_running(request, info))
        authorizer = self.parts.authorizer
        if wants_impersonation(request.headers):
            acting = impersonated(request, caller.user, authorizer, attributes)
            caller.impersonated = acting if acting is not caller.user else None
        user = caller.acting
        decision = authorizer.authorize(user, attributes)
        if not decision.allowed:
            raise forbidden(user, attributes, decision.reason)
        if not request.has_body:
            await request.receive_body()
        check_body_size(len(request.body))
        if request.path.startswith("//"):
            raise PageNotFound
        if info.is_resource_request:
            return await self._dispatcher.dispatch(request, info, user)
        return await self._other(request, user)

    async def _other(self, request: Request, user: User) -> Response:
        """Everything that is not a resource."""
        path = request.path
        if path.startswith(ENDPOINTS):
            checks = self.checks | ({"ready": lambda: self._ready} if path.startswith("/readyz") else {})
            condition = health(request, checks)
        elif path.startswith("/openapi"):
            condition = await self.openapi.handle(request)
        else:
            condition = self.discovery.handle(request)
        if condition is not None:
            return condition
        handler = self._routes.get(path.rstrip("/") or "/")
        if handler is None:
            handler = next((found for prefix, found in self._prefixes if path.startswith(prefix)), None)
        if handler is None:
            raise PageNotFound
        return await handler(request, user)

    def _record(
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
            finished(
                request,
                attributes,
                caller.user,
                audit_id=audit_id,
                received=received,
                completed=self.parts.clock(),
                code=code,
                impersonated=caller.impersonated,
                status=failure,
            )
        )


def _parse_request_info(request: Request) -> tuple[RequestInfo, AccessAttributes]:
    """What a request asks for. The same collections are asked for again and again, so what they mean is remembered."""
    if request.query.items or len(request.path) > _LONGEST_REMEMBERED:
        info = request_info(request.method, request.path, request.query)
        return info, _attributes(info)
    return _remembered(request.method, request.path)


@lru_cache(maxsize=1024)
def _remembered(method: str, path: str) -> tuple[RequestInfo, AccessAttributes]:
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


def _refused(request: Request, error: StatusError, status: Object) -> Response:
    try:
        rendering = negotiate(request)
        rendering = Rendering(rendering.media_type, pretty=rendering.pretty)
    except NotAcceptable:
        rendering = Rendering()
    response = answer(status, rendering, error.code)
    response.headers.update(error.headers)
    response.warnings = getattr(error, "warnings", [])
    return response


def _page_not_found() -> Response:
    headers = {"content-type": "text/plain; charset=utf-8", "x-content-type-options": "nosniff"}
    return Response(404, headers, b"404 page not found\n")
