"""Authorization attributes and decisions, and the Forbidden errors made from them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from herder.engine.meta.errors import Forbidden, resource_details
from herder.engine.meta.kinds import GroupResource
from herder.engine.wire import User


class AccessAttributes(msgspec.Struct, frozen=True, gc=False):
    """Authorization attributes of one request. A resource request has `resource`, any other only `path`.

    For list and watch, `name` is the value of a field selector `metadata.name=…`, so that rules with resourceNames
    apply.
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
    """The result of an authorization check."""

    allowed: bool
    reason: str = ""


class Authorizer(Protocol):
    """Decides whether a user may do something."""

    @property
    def generation(self) -> int:
        """Increases with each change of the policy that a decision has taken into account."""

    def authorize(self, user: User, attributes: AccessAttributes) -> Decision: ...


def forbidden(user: User, attributes: AccessAttributes, reason: str = "") -> Forbidden:
    """Return the Forbidden error with kube-apiserver's message."""
    message = denial_message(user, attributes)
    if reason:
        message = f"{message}: {reason}"
    if not attributes.is_resource_request:
        return Forbidden(f"forbidden: {message}", details={})
    resource = GroupResource(attributes.group, attributes.resource)
    subject = f'{resource} "{attributes.name}"' if attributes.name else str(resource)
    return Forbidden(f"{subject} is forbidden: {message}", details=resource_details(resource, attributes.name))


def denial_message(user: User, attributes: AccessAttributes) -> str:
    """Return the message without the reason: who cannot do what, where."""
    if not attributes.is_resource_request:
        return f'User "{user.name}" cannot {attributes.verb} path "{attributes.path}"'
    resource = attributes.resource
    if attributes.subresource:
        resource = f"{resource}/{attributes.subresource}"
    message = f'User "{user.name}" cannot {attributes.verb} resource "{resource}" in API group "{attributes.group}"'
    if attributes.namespace:
        return f'{message} in the namespace "{attributes.namespace}"'
    return f"{message} at the cluster scope"
