"""Effect `cluster-kubeconfig`: the kubeconfig Secret of a managed cluster for Cluster API tools, and its user.

The token is only in the Secret, and its hash in the Token.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any

from herder.api import settings
from herder.api.capi.kinds import CLUSTER, SECRET
from herder.api.capi.names import CLUSTER_NAME, SECRET_TYPE, kubeconfig_secret
from herder.api.identity.authn import hashes
from herder.api.identity.authn.tokens import NewToken, token_object, user_reference
from herder.api.identity.kubeconfigs import Manager, provisioned_binding, provisioned_data
from herder.api.identity.names import PROVISIONING, provisioning_user
from herder.api.management.kinds import CLUSTER_BINDING, TOKEN, USER
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind, Object

FIELD_MANAGER = "cluster-kubeconfig"


class ClusterKubeconfigs:
    """Executor of `cluster-kubeconfig`."""

    def __init__(self, client: Client, *, entropy: hashes.Entropy, setting: Callable[[str], str]) -> None:
        self._client = client
        self._entropy = entropy
        self._setting = setting

    async def __call__(self, arguments: Mapping[str, Any]) -> None:
        """Idempotent. A token whose key is lost is replaced; a revoked one stays revoked until the Secret is
        deleted."""
        namespace, name, management = arguments["namespace"], arguments["name"], arguments["management"]
        user = provisioning_user(namespace, name)
        manager = Manager(*settings.internal_address(self._setting))
        secret = await self._find(SECRET, kubeconfig_secret(name), namespace)
        if secret is not None and not _is_ours(secret, arguments["owner"]):
            raise PermissionError(f"Secret {namespace}/{kubeconfig_secret(name)} has another owner; delete it")
        await self._check_name(arguments)
        await self._check_user(user, namespace, name)
        account = await self._apply(USER, _user(user, namespace, name, arguments["managementOwner"]))
        await self._apply(CLUSTER_BINDING, provisioned_binding(namespace, name, management))
        key = _key(secret, user)
        if secret is None or not key:
            key = await self._new_token(account, management, arguments["managementOwner"])
        data = provisioned_data(manager, management, f"{user}:{key}")
        if secret is None or secret.get("data") != data:
            await self._apply(SECRET, _secret(namespace, name, data, arguments["owner"]))

    async def _check_name(self, arguments: Mapping[str, Any]) -> None:
        """A CAPI Cluster uses the kubeconfig Secret of its name, on behalf of its author."""
        namespace, name = arguments["namespace"], arguments["name"]
        found = await self._find(CLUSTER, name, namespace)
        if found is not None and not (arguments["provisioned"] and _is_ours(found, arguments["owner"])):
            raise PermissionError(f"Cluster {namespace}/{name} of {CLUSTER.group} has another owner; delete it")

    async def _check_user(self, user: str, namespace: str, name: str) -> None:
        """The user name is a short hash of the cluster's: a crafted cluster name could collide with another user."""
        found = await self._find(USER, user)
        if found is not None and _principal(namespace, name) not in (found.get("principalIds") or ()):
            raise PermissionError(f"User {user} does not belong to cluster {namespace}/{name}; rename the cluster")

    async def _new_token(self, account: Object, management: str, owner: Object) -> str:
        key, user = hashes.new_key(self._entropy), account["metadata"]["name"]
        owners = (owner, user_reference(account))
        wanted = NewToken(user, user, owners=owners, kind=PROVISIONING, cluster=management, derived=True)
        await self._apply(TOKEN, token_object(wanted, user, hashes.hash_key(key, self._entropy)))
        return key

    async def _find(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        try:
            return await self._client.get(kind.resource, name, namespace=namespace)
        except NotFound:
            return None

    async def _apply(self, kind: Kind, obj: Object) -> Object:
        return await self._client.apply(kind.resource, obj, field_manager=FIELD_MANAGER)


def _is_ours(obj: Object, owner: Object) -> bool:
    owners = obj["metadata"].get("ownerReferences") or ()
    return any(reference.get("uid") == owner["uid"] for reference in owners)


def _key(secret: Object | None, user: str) -> str:
    """The key in the Secret; empty if it holds no token of this user."""
    try:
        bearer = base64.b64decode(((secret or {}).get("data") or {}).get("token") or "", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
    whose, _, key = bearer.partition(":")
    return key if whose == user else ""


def _principal(namespace: str, name: str) -> str:
    return f"system://provisioning/{namespace}/{name}"


def _user(user: str, namespace: str, name: str, owner: Object) -> Object:
    """Owned by the management Cluster, so that it is deleted with it, and its token too."""
    return {
        "apiVersion": USER.api_version,
        "kind": USER.kind,
        "metadata": {"name": user, "ownerReferences": [owner]},
        "displayName": f"cluster {namespace}/{name}",
        "principalIds": [_principal(namespace, name), f"local://{user}"],
        "enabled": True,
    }


def _secret(namespace: str, name: str, data: Object, owner: Object) -> Object:
    return {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": {
            "name": kubeconfig_secret(name),
            "namespace": namespace,
            "labels": {CLUSTER_NAME: name},
            "ownerReferences": [owner],
        },
        "type": SECRET_TYPE,
        "data": data,
    }
