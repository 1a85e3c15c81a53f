"""Arguments of handlers outside the ordinary verbs: virtual resources and custom subresources."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from herder.engine.apiserver.registry.resources import Resource
from herder.engine.meta.errors import not_found
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.wire import Request, User


@dataclass(frozen=True, slots=True)
class VirtualCall:
    """Argument of `Resource.virtual(obj, call)`: a create request that is answered but never stored (reviews)."""

    user: User
    namespace: str
    now: datetime
    entropy: Callable[[int], bytes]
    request: Request
    dry_run: bool = False
    warnings: list[str] = field(default_factory=list)  # texts of Warning headers


@dataclass(frozen=True, slots=True)
class SubresourceRequest:
    """Argument of `Subresource.call(request)`, which returns an Object or a complete Response.

    `parent` is a copy of the stored object in the requested version. It is None if the object does not exist; the
    handler decides whether that is an error (`parent_or_404`).
    """

    request: Request
    user: User
    resource: Resource
    version: str
    subresource: str
    verb: str  # get, create, update, patch, delete
    namespace: str
    name: str
    body: Object | None
    parent: Object | None
    now: datetime
    entropy: Callable[[int], bytes]
    dry_run: bool
    warnings: list[str]
    path: tuple[str, ...]  # path segments after the subresource
    lookup: Callable[[GroupResource, str, str], Object | None]  # resource, namespace, name; storage version
    list: Callable[[GroupResource, str], Sequence[Object]]  # resource, namespace ("" for all)
    # Update the parent: `change` modifies the latest stored object (storage version) in place, and is retried on
    # conflict. Returns the object as stored.
    update: Callable[[Callable[[Object], None]], Awaitable[Object]]
    # Delete the parent with these DeleteOptions. Returns the response of the delete verb.
    delete: Callable[[Object], Awaitable[Object]]

    def parent_or_404(self) -> Object:
        if self.parent is None:
            raise not_found(self.resource.group_resource, self.name)
        return self.parent
