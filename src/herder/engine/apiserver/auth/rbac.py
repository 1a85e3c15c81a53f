"""RBAC authorizer: an in-memory index of roles and bindings, updated from the store's watch events."""

from __future__ import annotations

import sys

from msgspec import json

from herder.engine.apiserver.auth.access import AccessAttributes, Decision
from herder.engine.apiserver.auth.policy import GROUP, PolicyIndex
from herder.engine.apiserver.auth.users import SUPERUSERS
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.store import Record, Store
from herder.engine.wire import User

ROLES = GroupResource(GROUP, "roles")
CLUSTER_ROLES = GroupResource(GROUP, "clusterroles")
ROLE_BINDINGS = GroupResource(GROUP, "rolebindings")
CLUSTER_ROLE_BINDINGS = GroupResource(GROUP, "clusterrolebindings")
_POLICY = (ROLES, CLUSTER_ROLES, ROLE_BINDINGS, CLUSTER_ROLE_BINDINGS)

_ALLOWED = Decision(True)


class RbacAuthorizer:
    """Authorizes from memory, and never from a stale state.

    There is no background task: before every decision the index applies the events that its watches have queued. A
    binding is therefore effective from the first request after the one that created it.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._revision = store.revision
        self._policy = PolicyIndex()
        self.generation = 0
        # The next request drains the queue, so it needs no limit.
        self._watches = [
            (resource, store.watch(str(resource), since=store.revision, backlog=sys.maxsize)) for resource in _POLICY
        ]
        for resource in _POLICY:
            for record in store.list(str(resource)):
                _put(self._policy, resource, record)

    @property
    def policy(self) -> PolicyIndex:
        """Roles and bindings at the current revision."""
        if self._store.revision != self._revision:
            self._apply_events()
        return self._policy

    def authorize(self, user: User, attributes: AccessAttributes) -> Decision:
        policy = self.policy
        if SUPERUSERS in user.groups:
            return _ALLOWED
        return policy.grants(user, attributes.namespace).decide(attributes)

    def close(self) -> None:
        for _, watch in self._watches:
            watch.close()

    def _apply_events(self) -> None:
        self._revision = self._store.revision
        for resource, watch in self._watches:
            for event in watch.take():
                self.generation += 1
                if event.deleted:
                    _remove(self._policy, resource, event.record)
                else:
                    _put(self._policy, resource, event.record)


def _put(policy: PolicyIndex, resource: GroupResource, record: Record) -> None:
    obj: Object = json.decode(record.value)
    if resource in (ROLES, CLUSTER_ROLES):
        policy.put_role(record.key.namespace, record.key.name, obj)
    else:
        policy.put_binding(record.key.namespace, record.key.name, obj)


def _remove(policy: PolicyIndex, resource: GroupResource, record: Record) -> None:
    if resource in (ROLES, CLUSTER_ROLES):
        policy.remove_role(record.key.namespace, record.key.name)
    else:
        policy.remove_binding(record.key.namespace, record.key.name)
