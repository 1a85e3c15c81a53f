"""What a verb works with: the server's parts, and one request after it was understood and allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from herder.engine.apiserver.admission.chain import Chain
from herder.engine.apiserver.auth.access import AccessAttributes, Authorizer
from herder.engine.apiserver.negotiation import Rendering
from herder.engine.apiserver.request import RequestInfo
from herder.engine.apiserver.resources import Registry, Resource, Version
from herder.engine.apiserver.stored import finder, key_of
from herder.engine.apiserver.strategy import Context
from herder.engine.client.wire import Request, User
from herder.engine.meta.kinds import GroupResource, GroupVersionKind, Object
from herder.engine.store import Key, Store


@dataclass(slots=True)
class Parts:
    """What an API server is built from. Time and randomness come from outside, so that a simulator can give them."""

    store: Store
    registry: Registry
    authorizer: Authorizer
    admission: Chain
    clock: Callable[[], datetime]
    entropy: Callable[[int], bytes]

    def timestamp(self) -> str:
        return self.clock().astimezone(UTC).isoformat(timespec="seconds")[:19] + "Z"

    def uid(self) -> str:
        """A random UUID (version 4), put together by hand: every request needs one or two."""
        digits = self.entropy(16).hex()
        variant = "89ab"[int(digits[16], 16) & 3]
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


@dataclass(slots=True)
class Call:
    """One request on a resource."""

    parts: Parts
    request: Request
    info: RequestInfo
    user: User
    resource: Resource
    version: Version
    rendering: Rendering
    warnings: list[str] = field(default_factory=list)

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


def rebound(call: Call, obj: Object) -> Call:
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
    return Call(call.parts, call.request, named, call.user, call.resource, call.version, call.rendering, call.warnings)
