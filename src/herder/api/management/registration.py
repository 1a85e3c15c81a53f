"""Cluster registration tokens: the contents of their Secret, rotation, and verification."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import SECRET
from herder.api.durations import MAX_DURATION
from herder.api.management import names
from herder.api.settings import MIN_GRACE_MINUTES, MIN_TTL_MINUTES
from herder.api.times import parse_time
from herder.engine.meta.kinds import Object

RENEW = "registration-token"  # effect: create or rotate a token

JITTER_FRACTION, MAX_JITTER = 0.1, timedelta(hours=24)
"""Jitter after expiry before a token is rotated, so that not all clusters rotate at once."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    ttl: timedelta
    grace: timedelta

    @classmethod
    def of(cls, spec: Mapping[str, object], default_ttl: str, default_grace: str) -> Lifetime:
        """Read minutes from the spec, else from the settings; the grace period always ends before the next
        token does.
        """
        ttl = max(_minutes(spec.get("ttl"), default_ttl), MIN_TTL_MINUTES)
        grace = max(_minutes(spec.get("gracePeriod"), default_grace), MIN_GRACE_MINUTES)
        return cls(timedelta(minutes=ttl), timedelta(minutes=min(grace, ttl - 1)))


def _minutes(requested: object, default: str) -> int:
    minutes = requested if isinstance(requested, int) and not isinstance(requested, bool) else int(default)
    return min(minutes, int(MAX_DURATION.total_seconds()) // 60)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The contents of the Secret. Never print them: `token` and `previous` authenticate agents."""

    token: str
    expires: datetime
    previous: str = ""
    previous_expires: datetime | None = None

    def __repr__(self) -> str:
        return f"Tokens(expires={timestamp(self.expires)})"

    def accepts(self, presented: str, now: datetime) -> bool:
        """Whether the token is valid. Both are always compared, in constant time; a token that was not rotated in time
        is invalid.
        """
        is_current = _equal(presented, self.token) and now < self.expires + MAX_JITTER
        in_grace = self.previous_expires is not None and now < self.previous_expires
        is_previous = _equal(presented, self.previous) and in_grace
        return is_current or is_previous


def _equal(presented: str, known: str) -> bool:
    same = hmac.compare_digest(presented.encode(), known.encode())
    return same and bool(known)


def rotation_time(expires: datetime, lifetime: Lifetime, uid: str) -> datetime:
    """Return when the token is rotated: at its expiry, plus jitter derived from the cluster's UID."""
    digest = hashlib.sha256(f"{uid} {timestamp(expires)}".encode()).digest()
    share = int.from_bytes(digest[:4]) / 2**32
    return expires + min(lifetime.ttl * JITTER_FRACTION, MAX_JITTER) * share


def rotate_tokens(known: Tokens | None, fresh: str, lifetime: Lifetime, now: datetime, uid: str) -> Tokens:
    """Return the tokens as they should be now: unchanged until rotation is due."""
    if known is None:
        return Tokens(fresh, now + lifetime.ttl)
    if now < rotation_time(known.expires, lifetime, uid):
        return known
    return Tokens(fresh, now + lifetime.ttl, known.token, now + lifetime.grace)


# --- Secret ---------------------------------------------------------------------------------------------------------


_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,255}")
"""Tokens are part of shell commands and URLs. Editors of the namespace can write the Secret."""


def read_tokens(secret: Object) -> Tokens | None:
    """Read the Secret; None if it has no usable token."""
    values = {name: _decoded(value) for name, value in (secret.get("data") or {}).items()}
    expires = parse_time(values.get("expiresAt", ""))
    token, previous = (_usable(values.get(name, "")) for name in ("token", "previousToken"))
    if not token or expires is None:
        return None
    return Tokens(token, expires, previous, parse_time(values.get("gracePeriodExpiresAt", "")))


def _usable(token: str) -> str:
    return token if _TOKEN.fullmatch(token) else ""


def token_secret(registration_token: Object, tokens: Tokens, owner: Object) -> Object:
    meta = registration_token["metadata"]
    ends = tokens.previous_expires
    values = {
        "token": tokens.token,
        "previousToken": tokens.previous,
        "expiresAt": timestamp(tokens.expires),
        "gracePeriodExpiresAt": timestamp(ends) if ends else "",
    }
    return {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": {
            "name": names.token_secret(meta["name"]),
            "namespace": meta["namespace"],
            "labels": {names.TOKEN_LABEL: meta["name"]},
            "ownerReferences": [owner],
        },
        "type": "Opaque",
        "data": {name: base64.b64encode(value.encode()).decode() for name, value in values.items()},
    }


def agent_secret(tokens: Tokens) -> Object:
    """Build the Secret with the current token, for the managed cluster."""
    return {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": {"name": names.AGENT_REGISTRATION_SECRET, "namespace": names.SYSTEM_NAMESPACE},
        "type": "Opaque",
        "data": {"token": base64.b64encode(tokens.token.encode()).decode()},
    }


def _decoded(value: object) -> str:
    try:
        return base64.b64decode(str(value), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
