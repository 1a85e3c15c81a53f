"""A store with objects, and the authorizer and token components that read it, for tests of auth and admission."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from msgspec import json

from herder.engine.apiserver.auth.jwt import SigningKey
from herder.engine.apiserver.auth.rbac import RbacAuthorizer
from herder.engine.apiserver.auth.system_objects import new_metadata, object_encoder
from herder.engine.apiserver.auth.tokens import TokenIssuer, TokenVerifier
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.store import Delete, Key, Put, Store
from herder.engine.wire import User

RBAC = "rbac.authorization.k8s.io"


class FakeCluster:
    def __init__(self) -> None:
        self.now = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
        self.random = random.Random(7)
        self.store = Store.open(None, clock=lambda: self.now.timestamp())
        self.authorizer = RbacAuthorizer(self.store)
        self.issuer = TokenIssuer(SigningKey(ec.generate_private_key(ec.SECP256R1())), entropy=self.random.randbytes)
        self.verifier = TokenVerifier(self.issuer, self.store, clock=lambda: self.now)

    async def close(self) -> None:
        self.authorizer.close()
        await self.store.close()

    def pass_time(self, **span: float) -> None:
        self.now += timedelta(**span)

    async def put(self, resource: str, name: str, namespace: str = "", *, group: str = "", **body: Any) -> Object:
        """Create an object, or replace it (keeping its uid)."""
        key = Key(str(GroupResource(group, resource)), namespace, name)
        existing = self.store.get(key)
        metadata = {"name": name} | ({"namespace": namespace} if namespace else {}) | body.pop("metadata", {})
        if existing is None:
            metadata = new_metadata(metadata, now=self.now, entropy=self.random.randbytes)
        else:
            metadata = json.decode(existing.value)["metadata"] | metadata
        [record] = await self.store.write(Put(key, object_encoder({"metadata": metadata} | body)))
        return json.decode(record.value)

    async def delete(self, resource: str, name: str, namespace: str = "", *, group: str = "") -> None:
        key = Key(str(GroupResource(group, resource)), namespace, name)
        record = self.store.get(key)
        assert record is not None
        await self.store.write(Delete(key, lambda revision: record.value))

    async def cluster_role(self, name: str, *rules: Object, **body: Any) -> None:
        await self.put("clusterroles", name, group=RBAC, rules=list(rules), **body)

    async def role(self, namespace: str, name: str, *rules: Object) -> None:
        await self.put("roles", name, namespace, group=RBAC, rules=list(rules))

    async def bind(self, role: str, *subjects: Object, namespace: str = "", kind: str = "ClusterRole") -> None:
        """Bind a role with a binding of its name: a RoleBinding in a namespace, else a ClusterRoleBinding."""
        reference = {"apiGroup": RBAC, "kind": kind, "name": role}
        resource = "rolebindings" if namespace else "clusterrolebindings"
        await self.put(resource, role, namespace, group=RBAC, roleRef=reference, subjects=list(subjects))


def rule(verbs: str, resources: str, group: str = "", names: str = "") -> Object:
    created: Object = {"verbs": verbs.split(), "apiGroups": [group], "resources": resources.split()}
    return created | ({"resourceNames": names.split()} if names else {})


def paths(verbs: str, urls: str) -> Object:
    return {"verbs": verbs.split(), "nonResourceURLs": urls.split()}


def user(name: str) -> Object:
    return {"kind": "User", "apiGroup": RBAC, "name": name}


def group(name: str) -> Object:
    return {"kind": "Group", "apiGroup": RBAC, "name": name}


def account(name: str, namespace: str = "") -> Object:
    return {"kind": "ServiceAccount", "name": name} | ({"namespace": namespace} if namespace else {})


ALICE = User("alice", "alice-uid", ("dev", "system:authenticated"))
BOB = User("bob", "", ("system:authenticated",))
ADMIN = User("root", "", ("system:masters", "system:authenticated"))
