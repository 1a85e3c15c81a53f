"""Registration tokens: what their Secret holds, how long they live, and which of them opens a cluster."""

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
from herder.api.management import names
from herder.api.moments import moment
from herder.api.settings import FEWEST_GRACE_MINUTES, FEWEST_TTL_MINUTES
from herder.api.spans import LONGEST
from herder.engine.meta.kinds import Object

RENEW = "registration-token"  # the effect that makes a token, or a new one when it is time

JITTER_SHARE, MOST_JITTER = 0.1, timedelta(hours=24)
"""How long after its end a token is replaced: not those of a thousand clusters at once."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    ttl: timedelta
    grace: timedelta

    @classmethod
    def of(cls, spec: Mapping[str, object], default_ttl: str, default_grace: str) -> Lifetime:
        """Minutes of the spec, else of the settings; the grace always ends before the next token does."""
        ttl = max(_minutes(spec.get("ttl"), default_ttl), FEWEST_TTL_MINUTES)
        grace = max(_minutes(spec.get("gracePeriod"), default_grace), FEWEST_GRACE_MINUTES)
        return cls(timedelta(minutes=ttl), timedelta(minutes=min(grace, ttl - 1)))


def _minutes(asked: object, default: str) -> int:
    minutes = asked if isinstance(asked, int) and not isinstance(asked, bool) else int(default)
    return min(minutes, int(LONGEST.total_seconds()) // 60)


@dataclass(frozen=True, slots=True)
class Tokens:
    """What the Secret holds. Never printed: `token` and `previous` open a cluster."""

    token: str
    expires: datetime
    previous: str = ""
    previous_expires: datetime | None = None

    def __repr__(self) -> str:
        return f"Tokens(expires={timestamp(self.expires)})"

    def accepts(self, presented: str, now: datetime) -> bool:
        """Both are compared, always and in constant time. A token that nobody has replaced in time counts no longer."""
        is_current = _equal(presented, self.token) and now < self.expires + MOST_JITTER
        in_grace = self.previous_expires is not None and now < self.previous_expires
        is_previous = _equal(presented, self.previous) and in_grace
        return is_current or is_previous


def _equal(presented: str, known: str) -> bool:
    same = hmac.compare_digest(presented.encode(), known.encode())
    return same and bool(known)


def replaced_at(expires: datetime, lifetime: Lifetime, uid: str) -> datetime:
    """When the next token comes: at the end of this one, plus a share that each cluster has for itself."""
    digest = hashlib.sha256(f"{uid} {timestamp(expires)}".encode()).digest()
    share = int.from_bytes(digest[:4]) / 2**32
    return expires + min(lifetime.ttl * JITTER_SHARE, MOST_JITTER) * share


def renewed(known: Tokens | None, fresh: str, lifetime: Lifetime, now: datetime, uid: str) -> Tokens:
    """The tokens as they should be now: those that are known, until it is time for the fresh one."""
    if known is None:
        return Tokens(fresh, now + lifetime.ttl)
    if now < replaced_at(known.expires, lifetime, uid):
        return known
    return Tokens(fresh, now + lifetime.ttl, known.token, now + lifetime.grace)


# --- as a Secret ----------------------------------------------------------------------------------------------------


_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,255}")
"""Tokens are part of commands that people run, and of URLs. Editors of the namespace can write the Secret."""


def read(secret: Object) -> Tokens | None:
    """None where it holds no token that could be used."""
    values = {name: _decoded(value) for name, value in (secret.get("data") or {}).items()}
    expires = moment(values.get("expiresAt", ""))
    token, previous = (_usable(values.get(name, "")) for name in ("token", "previousToken"))
    if not token or expires is None:
        return None
    return Tokens(token, expires, previous, moment(values.get("gracePeriodExpiresAt", "")))


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
    """The current token, in the cluster that it is for."""
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
