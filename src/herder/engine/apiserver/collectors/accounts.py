"""Service account controller: default accounts and CA ConfigMaps of namespaces, and token Secrets."""

from __future__ import annotations

import base64
from collections.abc import Callable

import msgspec

from herder.engine.apiserver.collectors.controller_client import RETRY_SECONDS, ControllerClient
from herder.engine.apiserver.collectors.graph import ObjectNode
from herder.engine.control.loop import ControlLoop
from herder.engine.meta.errors import AlreadyExists, Forbidden, NotFound
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.engine.store import Event, Key

ACCOUNTS = GroupVersionResource("", "v1", "serviceaccounts")
CONFIG_MAPS = GroupVersionResource("", "v1", "configmaps")
SECRETS = GroupVersionResource("", "v1", "secrets")
ROOT_CA = "kube-root-ca.crt"
TOKEN_TYPE = "kubernetes.io/service-account-token"
ACCOUNT_NAME = "kubernetes.io/service-account.name"
ACCOUNT_UID = "kubernetes.io/service-account.uid"

# (service account, Secret name) -> token
IssueToken = Callable[[Object, str], str]


class ServiceAccountController:
    """Creates `default` and `kube-root-ca.crt` in every namespace, and fills or deletes token Secrets."""

    def __init__(self, api: ControllerClient, *, ca: bytes, issue: IssueToken) -> None:
        self._api = api
        self._ca = ca
        self._issue = issue
        self._tokens = _TokenSecrets()
        self._loop: ControlLoop[Key] = ControlLoop(
            "service-account-controller", self._reconcile, max_retry=RETRY_SECONDS
        )

    def reset(self) -> None:
        self._tokens = _TokenSecrets()

    def handle_event(self, event: Event) -> None:
        key = event.record.key
        if key.resource == "namespaces" and not event.deleted:
            self._loop.add(key)
        elif event.deleted and (key.resource, key.name) in {("serviceaccounts", "default"), ("configmaps", ROOT_CA)}:
            self._loop.add(Key("namespaces", "", key.namespace))
        if key.resource == "configmaps" and key.name == ROOT_CA and not event.deleted:
            self._loop.add(Key("namespaces", "", key.namespace))
        if key.resource == "serviceaccounts" and (event.deleted or event.previous is None):
            for secret in self._tokens.of_account(key):
                self._loop.add(secret)
        elif key.resource == "secrets":
            self._handle_secret(event)

    def _handle_secret(self, event: Event) -> None:
        key, is_token = event.record.key, TOKEN_TYPE.encode() in event.record.value
        if event.deleted or not is_token:
            self._tokens.remove(key)
            return
        self._tokens.put(key, _account_of(msgspec.json.decode(event.record.value)))
        self._loop.add(key)

    async def run(self) -> None:
        await self._loop.run()

    async def _reconcile(self, key: Key) -> None:
        try:
            if key.resource == "namespaces":
                await self._ensure_defaults(key.name)
            else:
                await self._reconcile_token(key)
        except (AlreadyExists, NotFound):
            pass  # another client did it, or the object was deleted

    async def _ensure_defaults(self, namespace: str) -> None:
        record = self._api.store.get(Key("namespaces", "", namespace))
        if record is None or ObjectNode.of(record).deleting:
            return
        try:
            if self._api.store.get(Key("serviceaccounts", namespace, "default")) is None:
                account = _object("ServiceAccount", namespace, "default")
                await self._api.client.create(ACCOUNTS, account, namespace=namespace)
            await self._publish_ca(namespace)
        except Forbidden:
            return  # the namespace is terminating

    async def _publish_ca(self, namespace: str) -> None:
        data = {"ca.crt": self._ca.decode()}
        record = self._api.store.get(Key("configmaps", namespace, ROOT_CA))
        if record is None:
            config = _object("ConfigMap", namespace, ROOT_CA) | {"data": data}
            config["metadata"]["annotations"] = {
                "kubernetes.io/description": "Contains a CA bundle that can be used to verify the API server."
            }
            await self._api.client.create(CONFIG_MAPS, config, namespace=namespace)
        elif msgspec.json.decode(record.value).get("data") != data:
            await self._api.client.patch(CONFIG_MAPS, ROOT_CA, {"data": data}, namespace=namespace)

    async def _reconcile_token(self, key: Key) -> None:
        record = self._api.store.get(key)
        if record is None:
            return
        secret = msgspec.json.decode(record.value)
        name = (secret["metadata"].get("annotations") or {}).get(ACCOUNT_NAME)
        if secret.get("type") != TOKEN_TYPE or not name or secret["metadata"].get("deletionTimestamp"):
            return
        account_record = self._api.store.get(Key("serviceaccounts", key.namespace, name))
        account = msgspec.json.decode(account_record.value) if account_record is not None else None
        known_uid = (secret["metadata"].get("annotations") or {}).get(ACCOUNT_UID)
        if account is None or (known_uid and known_uid != account["metadata"]["uid"]):
            await self._api.client.delete(SECRETS, key.name, namespace=key.namespace, uid=secret["metadata"]["uid"])
            return
        await self._fill_token_secret(key, secret, account)

    async def _fill_token_secret(self, key: Key, secret: Object, account: Object) -> None:
        data = secret.get("data") or {}
        desired = {"ca.crt": _base64(self._ca), "namespace": _base64(key.namespace.encode())}
        missing = {name: value for name, value in desired.items() if data.get(name) != value}
        if not data.get("token"):
            missing["token"] = _base64(self._issue(account, key.name).encode())
        uid = account["metadata"]["uid"]
        if missing or (secret["metadata"].get("annotations") or {}).get(ACCOUNT_UID) != uid:
            patch: Object = {
                "metadata": {
                    "annotations": {ACCOUNT_UID: uid},
                    "resourceVersion": secret["metadata"]["resourceVersion"],
                },
                "data": missing,
            }
            await self._api.client.patch(SECRETS, key.name, patch, namespace=key.namespace)


class _TokenSecrets:
    """Token Secrets by service account: a change of an account does not read all Secrets of its namespace."""

    def __init__(self) -> None:
        self._accounts: dict[Key, str] = {}
        self._secrets: dict[tuple[str, str], dict[Key, None]] = {}

    def of_account(self, account: Key) -> list[Key]:
        return list(self._secrets.get((account.namespace, account.name), ()))

    def put(self, secret: Key, account: str) -> None:
        self.remove(secret)
        if account:
            self._accounts[secret] = account
            self._secrets.setdefault((secret.namespace, account), {})[secret] = None

    def remove(self, secret: Key) -> None:
        account = self._accounts.pop(secret, None)
        if account is None:
            return
        place = secret.namespace, account
        del self._secrets[place][secret]
        if not self._secrets[place]:
            del self._secrets[place]


def _account_of(secret: Object) -> str:
    """Return the service account of a token Secret; empty for other Secrets."""
    annotations = secret["metadata"].get("annotations") or {}
    return str(annotations.get(ACCOUNT_NAME) or "") if secret.get("type") == TOKEN_TYPE else ""


def _object(kind: str, namespace: str, name: str) -> Object:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}}


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()
