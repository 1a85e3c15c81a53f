"""Dependencies of the API server and the context of one authorized resource request, as passed to verbs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import ParamSpec, TypeVar

from herder.engine.apiserver.admission.chain import CREATE, Attributes, Chain
from herder.engine.apiserver.auth.access import AccessAttributes, Authorizer, forbidden
from herder.engine.apiserver.compute import LOOP_UNITS, ComputeExecutor, InlineExecutor
from herder.engine.apiserver.registry.resources import Registry, Resource, Version
from herder.engine.apiserver.registry.storage_codec import deep_copy, key_of, object_lookup
from herder.engine.apiserver.registry.strategy import Context
from herder.engine.apiserver.request.info import RequestInfo
from herder.engine.apiserver.request.negotiation import Rendering
from herder.engine.meta.kinds import GroupResource, GroupVersionKind, Object
from herder.engine.meta.work import TooMuchWork, metered
from herder.engine.store import Key, Record, Store
from herder.engine.wire import Request, User, has_waited

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class ServerDeps:
    """Dependencies of an API server. Time and randomness are injected, so that a simulation can control them."""

    store: Store
    registry: Registry
    authorizer: Authorizer
    admission: Chain
    clock: Callable[[], datetime]
    entropy: Callable[[int], bytes]
    executor: ComputeExecutor = field(default_factory=InlineExecutor)

    def timestamp(self) -> str:
        return self.clock().astimezone(UTC).isoformat(timespec="seconds")[:19] + "Z"

    def uid(self) -> str:
        """Return a random UUID (version 4). Formatted by hand, because every request needs one or two."""
        digits = self.entropy(16).hex()
        variant = "89ab"[int(digits[16], 16) & 3]
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


@dataclass(slots=True)
class RequestContext:
    """One request for a resource, after routing, authentication and authorization."""

    deps: ServerDeps
    request: Request
    info: RequestInfo
    user: User
    resource: Resource
    version: Version
    rendering: Rendering
    warnings: list[str] = field(default_factory=list)
    large: bool = False  # process its documents in the executor's thread
    begun: float = 0.0  # time of the event loop when the request was authorized
    revision: int = 0  # of the store at that time

    @property
    def kind(self) -> GroupVersionKind:
        return GroupVersionKind(self.resource.group, self.version.name, self.resource.kind)

    @property
    def api_version(self) -> str:
        return self.resource.api_version(self.version.name)

    @property
    def group_resource(self) -> GroupResource:
        return self.resource.group_resource

    @property
    def namespace(self) -> str:
        return self.info.namespace if self.resource.namespaced else ""

    @property
    def key(self) -> Key:
        return key_of(self.resource, self.info.namespace, self.info.name)

    def strategy_context(self, subresource: str = "") -> Context:
        """Return the context that the strategy hooks of this request receive."""
        deps = self.deps
        return Context(self.user, deps.clock(), deps.entropy, object_lookup(deps.store), subresource)

    async def compute(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Run a function, in the executor's thread if the request is large. It must not touch state shared between
        requests."""
        if not self.large:
            return function(*args, **options)
        return await self.deps.executor.run(self.user.name, partial(function, *args, **options))

    async def check(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Run a pure function that evaluates patterns and CEL rules.

        It runs on the event loop first; if it exceeds the cost limit there, it starts again in the executor's thread.
        """
        if not self.large:
            try:
                with metered(LOOP_UNITS):
                    return function(*args, **options)
            except TooMuchWork:
                pass
        return await self.deps.executor.run(self.user.name, partial(function, *args, **options))

    async def check_again(self) -> None:
        """Called after a wait, before the object is read. Raises StatusError."""
        await self.request.check_again(self.begun, is_changed=self.deps.store.revision != self.revision)

    async def check_rights(self, attributes: Attributes, current: Record | None = None) -> None:
        """Called right before a write: the thread serves all users in turn, and rights may have ended meanwhile. The
        object may be another one of the name, even after a short wait. Raises StatusError."""
        is_changed = current is not None and current.revision > self.revision
        if not self.request.checks or not (is_changed or has_waited(self.begun)):
            return
        copy = None if attributes.obj is None else await self.compute(deep_copy, attributes.obj)
        await self.request.check_again(self.begun, is_changed=is_changed)
        if attributes.operation == CREATE and self.info.verb != "create":
            self.check_creation()
        await self.deps.admission.repeat(replace(attributes, obj=copy))

    def check_creation(self) -> None:
        """A PUT or apply that creates needs the right to create, too. Raises Forbidden."""
        attributes = self.access_attributes("create")
        decision = self.deps.authorizer.authorize(self.user, attributes)
        if not decision.allowed:
            raise forbidden(self.user, attributes, decision.reason)

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def access_attributes(self, verb: str) -> AccessAttributes:
        """Return the authorization attributes of this request with another verb: a PUT or apply that creates needs
        `create`."""
        info = self.info
        return AccessAttributes(
            verb=verb,
            group=info.group,
            version=info.version,
            resource=info.resource,
            subresource=info.subresource,
            namespace=info.namespace,
            name=info.name,
            path=info.path,
        )


def for_object(call: RequestContext, obj: Object) -> RequestContext:
    """Return the context of the same request for one object of the collection, as deletecollection needs it."""
    metadata = obj["metadata"]
    info = call.info
    named = RequestInfo(
        verb=info.verb,
        path=info.path,
        is_resource_request=True,
        group=info.group,
        version=info.version,
        namespace=metadata.get("namespace", ""),
        resource=info.resource,
        subresource=info.subresource,
        name=metadata["name"],
    )
    return replace(call, info=named, large=False)
