"""ext.cattle.io/v1 Token, stored as Secrets. The key is only in the response to its creation."""

from __future__ import annotations

from herder.api.capi.kinds import SECRET
from herder.api.identity.authn.tokens import NewToken, TokenRecord, from_secret, timestamp
from herder.api.identity.names import KUBECONFIG, STORED_KIND, STORED_TOKEN, STORED_USER
from herder.api.management.names import TOKENS_NAMESPACE
from herder.engine.client.client import Client
from herder.engine.meta.errors import Forbidden, NotFound, not_found
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.meta.names import dns1123_subdomain
from herder.engine.wire import User
from herder.gateway.identity.bodies import number_of, text_of
from herder.gateway.identity.ext import discovery
from herder.gateway.identity.identity import REQUEST_TOKEN, USERNAME
from herder.gateway.identity.issuer import Issued, Issuer
from herder.gateway.identity.token_cache import IdentityCache

_RESOURCE = GroupResource(discovery.GROUP, discovery.TOKENS)
PAGE_SIZE = 200  # tokens rendered before the event loop may switch
_KINDS = frozenset({"", KUBECONFIG})


class Tokens:
    """Token objects of users."""

    kind = "Token"

    def __init__(self, client: Client, known: IdentityCache, issuer: Issuer) -> None:
        self._client = client
        self._known = known
        self._issuer = issuer

    async def get(self, name: str, user: User) -> Object:
        return _rendered(await self._own(name, user), user)

    async def list(self, user: User) -> list[Object]:
        labels = f"{STORED_KIND}={STORED_TOKEN},{STORED_USER}={user.name}"
        found = await self._client.list_all(
            SECRET.resource,
            namespace=TOKENS_NAMESPACE,
            labels=labels,
            page_size=PAGE_SIZE,
            transform=lambda secret: _rendered(secret, user),
        )
        return [token for token in found.items if token["spec"]["userID"] == user.name]

    async def create(self, wanted: Object, user: User) -> Object:
        spec = wanted.get("spec") or {}
        if text_of(spec, "userID", user.name) not in ("", user.name):
            raise Forbidden("spec.userID: users can create tokens only for themselves")
        kind = text_of(spec, "kind")
        if kind not in _KINDS:
            raise Forbidden(f'spec.kind: must be empty or "{KUBECONFIG}"; only logins create sessions')
        issued = await self._issuer.issue_derived(
            NewToken(
                user=user.name,
                login_name=user.extra.get(USERNAME, (user.name,))[0],
                kind=kind,
                ttl_ms=self._issuer.lifetime(kind, number_of(spec, "ttl")),
                cluster=text_of(spec, "clusterName"),
                description=text_of(spec, "description"),
                derived=True,
            ),
            user,
        )
        return _with_key(_rendered(issued.obj, user), issued)

    async def delete(self, name: str, user: User) -> None:
        secret = await self._own(name, user)
        uid = secret["metadata"]["uid"]
        await self._client.delete(SECRET.resource, name, namespace=TOKENS_NAMESPACE, uid=uid)
        self._known.removed(from_secret(secret))

    async def _own(self, name: str, user: User) -> Object:
        """Tokens of other users are indistinguishable from missing ones."""
        if dns1123_subdomain(name):
            raise not_found(_RESOURCE, name)
        try:
            secret = await self._client.get(SECRET.resource, name, namespace=TOKENS_NAMESPACE)
        except NotFound:
            raise not_found(_RESOURCE, name) from None
        labels = secret["metadata"].get("labels") or {}
        if labels.get(STORED_KIND) != STORED_TOKEN or from_secret(secret).user != user.name:
            raise not_found(_RESOURCE, name)
        return secret


def _with_key(shown: Object, issued: Issued) -> Object:
    return shown | {"status": shown["status"] | {"value": issued.key, "bearerToken": issued.bearer}}


def _rendered(secret: Object, user: User) -> Object:
    record = from_secret(secret)
    meta = secret["metadata"]
    return {
        "apiVersion": discovery.API_VERSION,
        "kind": Tokens.kind,
        "metadata": {
            "name": record.name,
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
            "creationTimestamp": meta["creationTimestamp"],
            "labels": meta.get("labels") or {},
        },
        "spec": {
            "userID": record.user,
            "userPrincipal": {"name": record.principal, "loginName": record.login_name},
            "kind": record.kind,
            "description": record.description,
            "ttl": record.ttl_ms if record.ttl_ms > 0 else -1,
            "enabled": record.enabled,
            "clusterName": record.cluster,
        },
        "status": _status(record, user),
    }


def _status(record: TokenRecord, user: User) -> Object:
    expires = record.expires()
    return {
        "current": record.id in user.extra.get(REQUEST_TOKEN, ()),
        "expiresAt": timestamp(expires) if expires else "",
        "lastUsedAt": timestamp(record.used) if record.used else None,
    }
