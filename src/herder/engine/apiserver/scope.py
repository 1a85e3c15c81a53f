"""What a verb works with: the server's parts, and one request after it was understood and allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import ParamSpec, TypeVar

from herder.engine.apiserver.admission.chain import Chain
from herder.engine.apiserver.auth.access import AccessAttributes, Authorizer
from herder.engine.apiserver.compute import LOOP_UNITS, Computer, InlineComputer
from herder.engine.apiserver.negotiation import Rendering
from herder.engine.apiserver.request import RequestInfo
from herder.engine.apiserver.resources import Registry, Resource, Version
from herder.engine.apiserver.stored import finder, key_of
from herder.engine.apiserver.strategy import Context
from herder.engine.client.wire import Request, User
from herder.engine.meta.kinds import GroupResource, GroupVersionKind, Object
from herder.engine.meta.work import TooMuchWork, metered
from herder.engine.store import Key, Store

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class ServerDeps:
    """What an API server is built from. Time and randomness come from outside, so that a simulator can give them."""

    store: Store
    registry: Registry
    authorizer: Authorizer
    admission: Chain
    clock: Callable[[], datetime]
    entropy: Callable[[int], bytes]
    computer: Computer = field(default_factory=InlineComputer)

    def timestamp(self) -> str:
        return self.clock().astimezone(UTC).isoformat(timespec="seconds")[:19] + "Z"

    def uid(self) -> str:
        """A random UUID (version 4), put together by hand: every request needs one or two."""
        digits = self.entropy(16).hex()
        variant = "89ab"[int(digits[16], 16) & 3]
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


@dataclass(slots=True)
class RequestContext:
    """One request on a resource."""

    parts: ServerDeps
    request: Request
    info: RequestInfo
    user: User
    resource: Resource
    version: Version
    rendering: Rendering
    warnings: list[str] = field(default_factory=list)
    large: bool = False  # compute with its documents beside the event loop

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

    def context(self, subresource: str = "") -> Context:
        parts = self.parts
        return Context(self.user, parts.clock(), parts.entropy, finder(parts.store), subresource)

    async def compute(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """What the function returns, which must not touch anything that other requests see or change."""
        if not self.large:
            return function(*args, **options)
        return await self.parts.computer.run(self.user.name, partial(function, *args, **options))

    async def check(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """What the pure function returns, which runs patterns and rules: where they cost much it runs once more, beside
        the event loop."""
        if not self.large:
            try:
                with metered(LOOP_UNITS):
                    return function(*args, **options)
            except TooMuchWork:
                pass
        return await self.parts.computer.run(self.user.name, partial(function, *args, **options))

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def access(self, verb: str) -> AccessAttributes:
        """This request as another verb: creating by PUT or apply needs the right to create."""
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


def rebound(call: RequestContext, obj: Object) -> RequestContext:
    """The same call on another object of the collection, as deletecollection makes one for each."""
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
