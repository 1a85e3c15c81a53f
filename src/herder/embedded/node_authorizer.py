"""Authorization of machines by object: RBAC grants access to all Nodes and Leases, and each machine uses its own only.

Admission checks writes, but sees neither reads nor patches whose tests fail. The Node authorizer of Kubernetes limits
kubelets in the same way.
"""

from __future__ import annotations

import msgspec

from herder.embedded.node import LEASE_NAMESPACE, LEASES, NODES
from herder.embedded.node_admission import machine_label
from herder.embedded.node_policy import MACHINE_PREFIX, NODE_USER
from herder.engine.apiserver.auth.access import AccessAttributes, Authorizer, Decision
from herder.engine.meta.kinds import GroupResource
from herder.engine.store import Key, Store
from herder.engine.wire import User

OTHERS = Decision(False, "it belongs to another machine")


class NodeAuthorizer:
    """Denies machines what `inner` allows on Nodes and Leases of other machines. Objects that do not exist pass."""

    def __init__(self, inner: Authorizer, store: Store) -> None:
        self._inner = inner
        self._store = store

    @property
    def generation(self) -> int:
        return self._inner.generation

    def authorize(self, user: User, attributes: AccessAttributes) -> Decision:
        decision = self._inner.authorize(user, attributes)
        if not decision.allowed or not attributes.name:
            return decision
        resource = GroupResource(attributes.group, attributes.resource)
        if resource not in (NODES.group_resource, LEASES.group_resource):
            return decision
        if user.name.startswith(MACHINE_PREFIX):
            machine = user.name.removeprefix(MACHINE_PREFIX)
            is_own = self._owner(resource, attributes) in (None, machine)
        elif user.name == NODE_USER.name:
            is_own = self._is_shared(resource, attributes)
        else:
            return decision
        return decision if is_own else OTHERS

    def _owner(self, resource: GroupResource, attributes: AccessAttributes) -> str | None:
        """The machine that an object belongs to; None if it does not exist. A Lease belongs to the machine of its
        Node: a machine that replaces another of the same name takes over its Lease."""
        own = self._label(resource, attributes.namespace, attributes.name)
        if resource != LEASES.group_resource or attributes.namespace != LEASE_NAMESPACE:
            return own
        node = self._label(NODES.group_resource, "", attributes.name)
        return own if node is None else node

    def _is_shared(self, resource: GroupResource, attributes: AccessAttributes) -> bool:
        """Whether no machine with a token of its own has the Node, which its Lease shows."""
        is_elsewhere = resource == LEASES.group_resource and attributes.namespace != LEASE_NAMESPACE
        return not is_elsewhere and not self._label(LEASES.group_resource, LEASE_NAMESPACE, attributes.name)

    def _label(self, resource: GroupResource, namespace: str, name: str) -> str | None:
        """The machine that a Node or Lease names; None if the object does not exist."""
        record = self._store.get(Key(str(resource), namespace, name))
        return machine_label(msgspec.json.decode(record.value)) if record is not None else None
