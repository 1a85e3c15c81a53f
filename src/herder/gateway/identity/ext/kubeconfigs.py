"""ext.cattle.io/v1 Kubeconfig, stored as ConfigMaps. The file is only in the response to its creation."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from herder.api.capi.kinds import SECRET
from herder.api.example import CONFIG_MAP
from herder.api.identity.authn import hashes
from herder.api.identity.authn.hashes import Entropy
from herder.api.identity.authn.tokens import from_secret
from herder.api.identity.names import STORED_KIND, STORED_KUBECONFIG, STORED_USER
from herder.api.management.names import TOKENS_NAMESPACE
from herder.api.writes import owner_reference
from herder.engine.client.client import Client
from herder.engine.meta.errors import BadRequest, NotFound, not_found
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.meta.names import dns1123_subdomain
from herder.engine.wire import User
from herder.gateway.identity.bodies import number_of, text_of
from herder.gateway.identity.ext import discovery
from herder.gateway.identity.ext.tokens import PAGE_SIZE
from herder.gateway.identity.kubeconfigs import IssuedKubeconfig, KubeconfigRequest, Kubeconfigs
from herder.gateway.identity.token_cache import IdentityCache

_RESOURCE = GroupResource(discovery.GROUP, discovery.KUBECONFIGS)
_ALL = "*"
_SECOND_MS = 1000  # a Kubeconfig's ttl is in seconds, a Token's in milliseconds


class StoredKubeconfigs:
    """Kubeconfig objects of users."""

    kind = "Kubeconfig"

    def __init__(self, client: Client, known: IdentityCache, kubeconfigs: Kubeconfigs, entropy: Entropy) -> None:
        self._client = client
        self._known = known
        self._kubeconfigs = kubeconfigs
        self._entropy = entropy

    async def get(self, name: str, user: User) -> Object:
        return _rendered(await self._own(name, user))

    async def list(self, user: User) -> list[Object]:
        labels = f"{STORED_KIND}={STORED_KUBECONFIG},{STORED_USER}={user.name}"
        found = await self._client.list_all(
            CONFIG_MAP.resource, namespace=TOKENS_NAMESPACE, labels=labels, page_size=PAGE_SIZE, transform=_rendered
        )
        return found.items

    async def create(self, wanted: Object, user: User) -> Object:
        spec = wanted.get("spec") or {}
        issued = await self._kubeconfigs.make(
            KubeconfigRequest(
                clusters=await self._clusters(spec, user),
                manager=spec.get("includeDefaultEntry") is True,
                current=text_of(spec, "currentContext"),
                ttl_ms=number_of(spec, "ttl") * _SECOND_MS,
                description=text_of(spec, "description"),
            ),
            user,
        )
        stored = await self._client.create(
            CONFIG_MAP.resource, self._stored(spec, user, issued), namespace=TOKENS_NAMESPACE
        )
        shown = _rendered(stored)
        return shown | {"status": shown["status"] | {"value": issued.value}}

    async def delete(self, name: str, user: User) -> None:
        """Delete the token first: a deleted kubeconfig must grant nothing."""
        stored = await self._own(name, user)
        for token in _status(stored)["tokens"]:
            with suppress(NotFound):
                await self._delete_token(token, user)
        with suppress(NotFound):  # It may be garbage collected with its token.
            await self._client.delete(CONFIG_MAP.resource, name, namespace=TOKENS_NAMESPACE)

    async def _delete_token(self, name: str, user: User) -> None:
        secret = await self._client.get(SECRET.resource, name, namespace=TOKENS_NAMESPACE)
        record = from_secret(secret)
        if record.user == user.name:
            await self._client.delete(SECRET.resource, name, namespace=TOKENS_NAMESPACE, uid=record.uid)
            self._known.removed(record)

    async def _clusters(self, spec: Object, user: User) -> dict[str, str]:
        """Clusters that the user may use; others are indistinguishable from missing ones."""
        requested: Any = spec.get("clusters") or []
        if not isinstance(requested, list) or not all(isinstance(cluster, str) for cluster in requested):
            raise BadRequest('spec.clusters: must be a list of ids, or "*" alone for all')
        if not requested and spec.get("includeDefaultEntry") is not True:
            raise BadRequest("spec.clusters: at least one is required, or spec.includeDefaultEntry")
        found = await self._kubeconfigs.reachable(user) if requested else {}
        if requested == [_ALL]:
            return dict(found)
        for number, cluster in enumerate(requested):
            if cluster not in found:
                raise BadRequest(f'spec.clusters[{number}]: cluster "{cluster}" not found')
        return {cluster: found[cluster] for cluster in requested}

    def _stored(self, spec: Object, user: User, issued: IssuedKubeconfig) -> Object:
        tokens = [issued.token.record.name] if issued.token else []
        kept = {name: spec[name] for name in _STORED_FIELDS if name in spec}
        meta: Object = {
            "name": f"kubeconfig-{hashes.new_key(self._entropy)[:10]}",
            "namespace": TOKENS_NAMESPACE,
            "labels": {STORED_KIND: STORED_KUBECONFIG, STORED_USER: user.name},
        }
        if issued.token:
            meta["ownerReferences"] = [owner_reference(SECRET, issued.token.obj, controller=False)]
        data = {"spec": json.dumps(kept), "status": json.dumps({"tokens": tokens, "summary": "Complete"})}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}

    async def _own(self, name: str, user: User) -> Object:
        if dns1123_subdomain(name):
            raise not_found(_RESOURCE, name)
        try:
            stored = await self._client.get(CONFIG_MAP.resource, name, namespace=TOKENS_NAMESPACE)
        except NotFound:
            raise not_found(_RESOURCE, name) from None
        labels = stored["metadata"].get("labels") or {}
        if labels.get(STORED_KIND) != STORED_KUBECONFIG or labels.get(STORED_USER) != user.name:
            raise not_found(_RESOURCE, name)
        return stored


_STORED_FIELDS = ("clusters", "currentContext", "description", "ttl", "includeDefaultEntry")


def _rendered(stored: Object) -> Object:
    meta = stored["metadata"]
    shown = {name: meta[name] for name in ("name", "uid", "resourceVersion", "creationTimestamp", "labels")}
    return {
        "apiVersion": discovery.API_VERSION,
        "kind": StoredKubeconfigs.kind,
        "metadata": shown,
        "spec": _json(stored, "spec"),
        "status": _status(stored),
    }


def _status(stored: Object) -> Object:
    status = _json(stored, "status")
    tokens = status.get("tokens")
    return {"tokens": tokens if isinstance(tokens, list) else [], "summary": status.get("summary") or ""}


def _json(stored: Object, key: str) -> Object:
    try:
        value = json.loads((stored.get("data") or {}).get(key, "{}"))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
