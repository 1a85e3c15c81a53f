"""ext.cattle.io/v1 Kubeconfig over ConfigMaps. The file is in the answer to its creation; only what it was is kept."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from herder.api.capi.kinds import SECRET
from herder.api.example import CONFIG_MAP
from herder.api.identity import hashes
from herder.api.identity.hashes import Entropy
from herder.api.identity.names import STORED_KIND, STORED_KUBECONFIG, STORED_USER
from herder.api.identity.tokens import from_secret
from herder.api.management.names import TOKENS_NAMESPACE
from herder.api.writing import owner_reference
from herder.engine.client.client import Client
from herder.engine.client.wire import User
from herder.engine.meta.errors import BadRequest, NotFound, not_found
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.meta.names import dns1123_subdomain
from herder.gateway.identity.answers import number_of, text_of
from herder.gateway.identity.ext import discovery
from herder.gateway.identity.ext.tokens import PAGE_SIZE
from herder.gateway.identity.known import Known
from herder.gateway.identity.kubeconfigs import Kubeconfigs, Made, Wanted

_RESOURCE = GroupResource(discovery.GROUP, discovery.KUBECONFIGS)
_ALL = "*"
_SECOND_MS = 1000  # a Kubeconfig's ttl is in seconds, a Token's in milliseconds


class StoredKubeconfigs:
    kind = "Kubeconfig"

    def __init__(self, client: Client, known: Known, kubeconfigs: Kubeconfigs, entropy: Entropy) -> None:
        self._client = client
        self._known = known
        self._kubeconfigs = kubeconfigs
        self._entropy = entropy

    async def get(self, name: str, user: User) -> Object:
        return _shown(await self._own(name, user))

    async def list(self, user: User) -> list[Object]:
        labels = f"{STORED_KIND}={STORED_KUBECONFIG},{STORED_USER}={user.name}"
        found = await self._client.list_all(
            CONFIG_MAP.resource, namespace=TOKENS_NAMESPACE, labels=labels, page_size=PAGE_SIZE, keep=_shown
        )
        return found.items

    async def create(self, wanted: Object, user: User) -> Object:
        spec = wanted.get("spec") or {}
        made = await self._kubeconfigs.make(
            Wanted(
                clusters=await self._clusters(spec, user),
                manager=spec.get("includeDefaultEntry") is True,
                current=text_of(spec, "currentContext"),
                ttl_ms=number_of(spec, "ttl") * _SECOND_MS,
                description=text_of(spec, "description"),
            ),
            user,
        )
        stored = await self._client.create(
            CONFIG_MAP.resource, self._stored(spec, user, made), namespace=TOKENS_NAMESPACE
        )
        shown = _shown(stored)
        return shown | {"status": shown["status"] | {"value": made.value}}

    async def delete(self, name: str, user: User) -> None:
        """Its token goes first: a kubeconfig that is not there opens nothing."""
        stored = await self._own(name, user)
        for token in _status(stored)["tokens"]:
            with suppress(NotFound):
                await self._delete_token(token, user)
        with suppress(NotFound):  # it may have gone with its token
            await self._client.delete(CONFIG_MAP.resource, name, namespace=TOKENS_NAMESPACE)

    async def _delete_token(self, name: str, user: User) -> None:
        secret = await self._client.get(SECRET.resource, name, namespace=TOKENS_NAMESPACE)
        record = from_secret(secret)
        if record.user == user.name:
            await self._client.delete(SECRET.resource, name, namespace=TOKENS_NAMESPACE, uid=record.uid)
            self._known.removed(record)

    async def _clusters(self, spec: Object, user: User) -> dict[str, str]:
        """Those that the user may reach: another's cluster cannot be told from one that does not exist."""
        asked: Any = spec.get("clusters") or []
        if not isinstance(asked, list) or not all(isinstance(cluster, str) for cluster in asked):
            raise BadRequest('spec.clusters: must be a list of ids, or "*" alone for all')
        if not asked and spec.get("includeDefaultEntry") is not True:
            raise BadRequest("spec.clusters: at least one must be given, or spec.includeDefaultEntry")
        found = await self._kubeconfigs.reachable(user) if asked else {}
        if asked == [_ALL]:
            return dict(found)
        for number, cluster in enumerate(asked):
            if cluster not in found:
                raise BadRequest(f'spec.clusters[{number}]: there is no cluster "{cluster}" that you may reach')
        return {cluster: found[cluster] for cluster in asked}

    def _stored(self, spec: Object, user: User, made: Made) -> Object:
        tokens = [made.token.record.name] if made.token else []
        kept = {name: spec[name] for name in _KEPT if name in spec}
        meta: Object = {
            "name": f"kubeconfig-{hashes.new_key(self._entropy)[:10]}",
            "namespace": TOKENS_NAMESPACE,
            "labels": {STORED_KIND: STORED_KUBECONFIG, STORED_USER: user.name},
        }
        if made.token:
            meta["ownerReferences"] = [owner_reference(SECRET, made.token.obj, controller=False)]
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


_KEPT = ("clusters", "currentContext", "description", "ttl", "includeDefaultEntry")


def _shown(stored: Object) -> Object:
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
