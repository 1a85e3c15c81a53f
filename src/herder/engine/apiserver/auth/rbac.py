"""Who may do what: roles and bindings from the store, in an index that follows the store's events."""

from __future__ import annotations

import asyncio

from msgspec import json

from herder.engine.apiserver.auth.access import AccessAttributes, Decision
from herder.engine.apiserver.auth.policy import GROUP, PolicyIndex
from herder.engine.apiserver.auth.users import SUPERUSERS
from herder.engine.client.wire import User
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.store import Compacted, Overflow, Record, Store

ROLES = GroupResource(GROUP, "roles")
CLUSTER_ROLES = GroupResource(GROUP, "clusterroles")
ROLE_BINDINGS = GroupResource(GROUP, "rolebindings")
CLUSTER_ROLE_BINDINGS = GroupResource(GROUP, "clusterrolebindings")
_POLICY = (ROLES, CLUSTER_ROLES, ROLE_BINDINGS, CLUSTER_ROLE_BINDINGS)

_ALLOWED = Decision(True)


class RbacAuthorizer:
    """Answers from memory. `load` once before the first request, `follow` for as long as the server runs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loaded_at = 0
        self.policy = PolicyIndex()

    def load(self) -> None:
        """Read all policy anew."""
        policy = PolicyIndex()
        self._loaded_at = self._store.revision
        for resource in _POLICY:
            for record in self._store.list(str(resource)):
                _put(policy, resource, record)
        self.policy = policy

    def authorize(self, user: User, attributes: AccessAttributes) -> Decision:
        if SUPERUSERS in user.groups:
            return _ALLOWED
        return self.policy.grants(user, attributes.namespace).decide(attributes)

    async def follow(self) -> None:
        """Keep the index current until cancelled. A follower that fell too far behind reads all anew."""
        self.load()
        while True:
            try:
                async with asyncio.TaskGroup() as group:
                    for resource in _POLICY:
                        group.create_task(self._follow(resource, self._loaded_at))
            except* (Compacted, Overflow):
                self.load()
            else:
                return  # the store closed its watches: the server is stopping

    async def _follow(self, resource: GroupResource, since: int) -> None:
        watch = self._store.watch(str(resource), since=since)
        try:
            async for batch in watch:
                for event in batch:
                    if event.deleted:
                        _remove(self.policy, resource, event.record)
                    else:
                        _put(self.policy, resource, event.record)
        finally:
            watch.close()


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
