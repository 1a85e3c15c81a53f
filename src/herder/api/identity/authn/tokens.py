"""Tokens of both API groups as one record, the objects that store them, and their validation.

A management.cattle.io Token is an object of its own; an ext.cattle.io Token is stored in a Secret.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from herder.api.capi.names import annotations_of, labels_of
from herder.api.durations import duration
from herder.api.identity.authn.hashes import UNKNOWN, is_hash, matches
from herder.api.identity.names import (
    LOCAL_PRINCIPAL,
    LOCAL_PROVIDER,
    SESSION,
    STORED_KIND,
    STORED_TOKEN,
    STORED_USER,
    TOKEN_HASHED,
    TOKEN_KIND,
    TOKEN_USER,
)
from herder.api.management.kinds import TOKEN, USER
from herder.api.management.names import TOKENS_NAMESPACE
from herder.api.times import parse_time
from herder.api.writes import owner_reference
from herder.engine.meta.kinds import Object

_KNOWN_PROVIDERS = frozenset({"", LOCAL_PROVIDER})


@dataclass(frozen=True, slots=True)
class TokenRecord:
    name: str
    ext: bool
    user: str
    kept: str = field(repr=False)  # the hash of the key; the plain key in old tokens
    created: datetime
    plain: bool = False  # `kept` is the plain key
    uid: str = ""  # UID of the object
    user_uid: str = ""  # UID of the user it was issued to: a later user with the same name cannot use it
    owned: bool = False  # it has owner references, and is garbage-collected with them
    ttl_ms: int = 0  # 0 or less: unlimited
    enabled: bool = True
    cluster: str = ""  # the only cluster it is valid for
    kind: str = ""
    provider: str = ""
    principal: str = ""
    login_name: str = ""
    groups: tuple[str, ...] = ()
    used: datetime | None = None
    description: str = ""

    @property
    def id(self) -> str:
        """Identifies tokens of both API groups."""
        return token_id(self.name, ext=self.ext)

    def expires(self) -> datetime | None:
        return self.created + duration(self.ttl_ms / 1000) if self.ttl_ms > 0 else None


def token_id(name: str, *, ext: bool) -> str:
    return f"ext/{name}" if ext else name


# --- reading --------------------------------------------------------------------------------------------------------


def from_token(token: Object) -> TokenRecord:
    meta = token["metadata"]
    kept = token.get("token") or ""
    principal = token.get("userPrincipal") or {}
    groups = [(group.get("metadata") or {}).get("name", "") for group in token.get("groupPrincipals") or []]
    return TokenRecord(
        name=meta["name"],
        ext=False,
        user=token.get("userId") or "",
        kept=kept,
        created=_time(meta["creationTimestamp"]),
        uid=meta.get("uid", ""),
        user_uid=_user_uid(token),
        owned=bool(meta.get("ownerReferences")),
        plain=annotations_of(token).get(TOKEN_HASHED) != "true" and not is_hash(kept),
        ttl_ms=int(token.get("ttl") or 0),
        enabled=token.get("enabled") is not False,
        cluster=token.get("clusterName") or "",
        kind=labels_of(token).get(TOKEN_KIND, ""),
        provider=token.get("authProvider") or "",
        principal=(principal.get("metadata") or {}).get("name", ""),
        login_name=principal.get("loginName") or "",
        groups=tuple(group for group in groups if group),
        used=_latest(token.get("lastUsedAt"), token.get("activityLastSeenAt")),
        description=token.get("description") or "",
    )


def from_secret(secret: Object) -> TokenRecord:
    data = _plain(secret.get("data") or {})
    principal = _json_object(data.get("principal", ""))
    return TokenRecord(
        name=secret["metadata"]["name"],
        ext=True,
        user=data.get("user-id", ""),
        kept=data.get("hash", ""),
        created=_time(secret["metadata"]["creationTimestamp"]),
        uid=secret["metadata"].get("uid", ""),
        user_uid=_user_uid(secret),
        owned=bool(secret["metadata"].get("ownerReferences")),
        ttl_ms=_integer(data.get("ttl", "")),
        enabled=data.get("enabled", "true") != "false",
        cluster=data.get("cluster", ""),
        kind=data.get("kind", ""),
        provider=str(principal.get("provider") or ""),
        principal=str((principal.get("metadata") or {}).get("name") or principal.get("name") or ""),
        login_name=str(principal.get("loginName") or ""),
        used=_latest(data.get("last-used-at"), data.get("last-activity-seen")),
        description=data.get("description", ""),
    )


# --- checking -------------------------------------------------------------------------------------------------------


def key_matches(record: TokenRecord | None, key: str) -> bool:
    """Whether the key is correct; takes as long if there is no such token."""
    if record is None:
        return matches(key, UNKNOWN) and False
    if record.plain:
        return bool(record.kept) and hmac.compare_digest(key.encode(), record.kept.encode())
    return matches(key, record.kept)


def problem(record: TokenRecord, now: datetime, *, session_idle: timedelta) -> str:
    """Return why a token with a correct key is invalid, or "". Logged only: clients always get the same message."""
    expires = record.expires()
    if not record.enabled:
        return "the token is disabled"
    if record.provider not in _KNOWN_PROVIDERS:
        return f'provider "{record.provider}" of the token is not enabled'
    if expires is not None and now >= expires:
        return "the token has expired"
    if record.kind == SESSION and session_idle and now >= (record.used or record.created) + session_idle:
        return "the session was idle for too long"
    return ""


def user_problem(record: TokenRecord, user: Object | None) -> str:
    if user is None or user["metadata"].get("deletionTimestamp"):
        return "the token's user does not exist"
    if record.user_uid and record.user_uid != user["metadata"].get("uid"):
        return "the token's user was deleted, and another one has the same name"
    return "the token's user is disabled" if user.get("enabled") is False else ""


def group_names(principals: Sequence[str]) -> tuple[str, ...]:
    """Return external groups, never those with a meaning in Kubernetes."""
    return tuple(name for name in principals if not name.startswith((LOCAL_PRINCIPAL, "system:")))


# --- writing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token to create, except for its key."""

    user: str
    login_name: str
    owners: tuple[Object, ...] = ()  # owner references: the user, with whom it is garbage-collected
    display_name: str = ""
    kind: str = SESSION
    ttl_ms: int = 0
    cluster: str = ""
    description: str = ""
    derived: bool = False  # created with the API instead of by a login


def principal_of(wanted: NewToken) -> Object:
    return {
        "metadata": {"name": f"{LOCAL_PRINCIPAL}{wanted.user}"},
        "displayName": wanted.display_name or wanted.login_name,
        "loginName": wanted.login_name,
        "principalType": "user",
        "provider": LOCAL_PROVIDER,
        "me": True,
    }


def token_object(wanted: NewToken, name: str, key_hash: str) -> Object:
    return {
        "apiVersion": TOKEN.api_version,
        "kind": TOKEN.kind,
        "metadata": {
            "name": name,
            "labels": {TOKEN_USER: wanted.user, TOKEN_KIND: wanted.kind},
            "annotations": {TOKEN_HASHED: "true"},
            **_owned_by(wanted.owners),
        },
        "token": key_hash,
        "userId": wanted.user,
        "userPrincipal": principal_of(wanted),
        "authProvider": LOCAL_PROVIDER,
        "ttl": wanted.ttl_ms,
        "isDerived": wanted.derived,
        "description": wanted.description,
        "clusterName": wanted.cluster,
        "enabled": True,
    }


def token_secret(wanted: NewToken, name: str, key_hash: str, uid: str, now: datetime) -> Object:
    """Build the Secret of an ext.cattle.io token."""
    labels = {STORED_KIND: STORED_TOKEN, STORED_USER: wanted.user, TOKEN_KIND: wanted.kind}
    data = {
        "cluster": wanted.cluster,
        "description": wanted.description,
        "enabled": "true",
        "hash": key_hash,
        "kind": wanted.kind,
        "last-activity-seen": "",
        "last-update-time": timestamp(now),
        "last-used-at": "",
        "principal": json.dumps(principal_of(wanted)),
        "ttl": str(wanted.ttl_ms),
        "kube-uid": uid,
        "user-id": wanted.user,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": TOKENS_NAMESPACE, "labels": labels, **_owned_by(wanted.owners)},
        "type": "Opaque",
        "data": {key: encoded(value) for key, value in data.items()},
    }


def use_patch(record: TokenRecord, now: datetime, user: Object, key_hash: str = "") -> Object:
    """Return a patch that records the use and, with a hash, replaces the stored key.

    The UID prevents it from applying to a successor of the same name. A token without owners, created elsewhere,
    becomes owned by its user.
    """
    same: Object = {"uid": record.uid} | ({} if record.owned else _owned_by((user_reference(user),)))
    if record.ext:
        data = {"last-used-at": encoded(timestamp(now))} | ({"hash": encoded(key_hash)} if key_hash else {})
        return {"metadata": same, "data": data}
    if not key_hash:
        return {"metadata": same, "lastUsedAt": timestamp(now)}
    hashed = same | {"annotations": {TOKEN_HASHED: "true"}}
    return {"metadata": hashed, "token": key_hash, "lastUsedAt": timestamp(now)}


def user_reference(user: Object) -> Object:
    return owner_reference(USER, user, controller=False)


def _owned_by(owners: Sequence[Object]) -> Object:
    return {"ownerReferences": list(owners)} if owners else {}


def _user_uid(obj: Object) -> str:
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if _is_user(owner)), "")


def _is_user(owner: Object) -> bool:
    return owner.get("kind") == USER.kind and str(owner.get("apiVersion")).startswith(f"{USER.group}/")


# --- values ---------------------------------------------------------------------------------------------------------


def timestamp(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _plain(data: Mapping[str, str]) -> dict[str, str]:
    plain = {}
    for key, value in data.items():
        try:
            plain[key] = base64.b64decode(value).decode()
        except (binascii.Error, UnicodeDecodeError):
            plain[key] = ""
    return plain


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 1  # unreadable: treat as expired rather than unlimited


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _latest(*texts: str | None) -> datetime | None:
    return max((at for text in texts if (at := parse_time(text))), default=None)
