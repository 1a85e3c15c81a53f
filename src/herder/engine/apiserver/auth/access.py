"""What someone wants to do, and whether they may: the words in which authorisers are asked and answer."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from herder.engine.client.wire import User
from herder.engine.meta.errors import Forbidden, resource_details
from herder.engine.meta.kinds import GroupResource


class AccessAttributes(msgspec.Struct, frozen=True, gc=False):
    """One attempt. A resource request has `resource`; any other has only `path`.

    For list and watch `name` is the one that a field selector `metadata.name=…` demands, so that a rule with
    resourceNames can allow it.
    """

    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def is_resource_request(self) -> bool:
        return bool(self.resource) or not self.path


class Decision(NamedTuple):
    allowed: bool
    reason: str = ""


class Authorizer(Protocol):
    def authorize(self, user: User, attributes: AccessAttributes) -> Decision: ...


def forbidden(user: User, attributes: AccessAttributes, reason: str = "") -> Forbidden:
    """The refusal in the real server's words."""
    message = refusal(user, attributes)
    if reason:
        message = f"{message}: {reason}"
    if not attributes.is_resource_request:
        return Forbidden(f"forbidden: {message}", details={})
    resource = GroupResource(attributes.group, attributes.resource)
    subject = f'{resource} "{attributes.name}"' if attributes.name else str(resource)
    return Forbidden(f"{subject} is forbidden: {message}", details=resource_details(resource, attributes.name))


def refusal(user: User, attributes: AccessAttributes) -> str:
    if not attributes.is_resource_request:
        return f'User "{user.name}" cannot {attributes.verb} path "{attributes.path}"'
    resource = attributes.resource
    if attributes.subresource:
        resource = f"{resource}/{attributes.subresource}"
    message = f'User "{user.name}" cannot {attributes.verb} resource "{resource}" in API group "{attributes.group}"'
    if attributes.namespace:
        return f'{message} in the namespace "{attributes.namespace}"'
    return f"{message} at the cluster scope"
