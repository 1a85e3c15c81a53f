"""Bootstrap tokens of machines: the token in an install script, and how long it is valid."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from datetime import datetime, timedelta

from herder.api import settings
from herder.api.capi.names import annotations_of
from herder.api.rke import names
from herder.api.times import parse_time
from herder.engine.meta.kinds import Object


def machine_token(account_token: bytes) -> str:
    """Derive the token in a machine's install script from the token of its service account.

    It proves that the manager rendered the script, and the API does not accept it.
    """
    return base64.urlsafe_b64encode(hashlib.sha256(account_token).digest()).decode()


def expires_at(secret: Object, setting: Callable[[str], str]) -> datetime | None:
    """Return when the token expires: some time after creation, or soon after its first use. None: never."""
    if setting(settings.NODE_TOKENS_EXPIRE) != "true":
        return None
    created = datetime.fromisoformat(secret["metadata"]["creationTimestamp"])
    unused = created + timedelta(seconds=settings.parse_duration(setting(settings.NODE_TOKEN_UNUSED_TTL)))
    used = parse_time(annotations_of(secret).get(names.LAST_ACCESS, ""))
    if used is None:
        return unused
    return min(unused, used + timedelta(seconds=settings.parse_duration(setting(settings.NODE_TOKEN_USED_TTL))))


def is_invalidated(secret: Object) -> bool:
    return names.TOKEN_INVALIDATED in annotations_of(secret)


def is_valid(secret: Object, setting: Callable[[str], str], now: datetime) -> bool:
    expires = expires_at(secret, setting)
    return not is_invalidated(secret) and (expires is None or now < expires)
