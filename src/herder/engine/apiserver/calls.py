"""What handlers outside the ordinary verbs are called with: virtual resources and subresources of their own making."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from herder.engine.apiserver.resources import Resource
from herder.engine.client.wire import Request, User
from herder.engine.meta.errors import not_found
from herder.engine.meta.kinds import GroupResource, Object


@dataclass(frozen=True, slots=True)
class VirtualCall:
    """Handed to `Resource.virtual(obj, call)`: a create that is answered and never stored."""

    user: User
    namespace: str
    now: datetime
    entropy: Callable[[int], bytes]
    request: Request
    dry_run: bool = False
    warnings: list[str] = field(default_factory=list)  # texts for Warning headers


@dataclass(frozen=True, slots=True)
class SubresourceRequest:
    """Handed to `Subresource.call(request)`, which answers an Object, or a Response of its own making.

    `parent` is the stored object in the requested version, the handler's own copy. It is None where the object does
    not exist: then the handler decides whether that is an error (`parent_or_404`).
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
    path: tuple[str, ...]  # what follows the subresource in the URL
    lookup: Callable[[GroupResource, str, str], Object | None]  # resource, namespace, name; storage version
    list: Callable[[GroupResource, str], Sequence[Object]]  # resource, namespace ("" for all)
    # Change the parent: `change` gets the newest stored object (storage version) and changes it in place; it runs
    # again when another writer came between. Answers the object as stored.
    update: Callable[[Callable[[Object], None]], Awaitable[Object]]
    # Delete the parent with these DeleteOptions; answers what the delete verb answers.
    delete: Callable[[Object], Awaitable[Object]]

    def parent_or_404(self) -> Object:
        if self.parent is None:
            raise not_found(self.resource.group_resource, self.name)
        return self.parent
