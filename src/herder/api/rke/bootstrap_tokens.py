"""How long the token in a new machine's install script counts: told by its Secret's metadata and the settings alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from herder.api import settings
from herder.api.capi.names import annotations_of
from herder.api.moments import moment
from herder.api.rke import names
from herder.engine.meta.kinds import Object


def ends_at(secret: Object, setting: Callable[[str], str]) -> datetime | None:
    """When it stops to count: some time after it was made, or soon after it was used. None: never."""
    if setting(settings.NODE_TOKENS_EXPIRE) != "true":
        return None
    created = datetime.fromisoformat(secret["metadata"]["creationTimestamp"])
    unused = created + timedelta(seconds=settings.seconds(setting(settings.NODE_TOKEN_UNUSED)))
    used = moment(annotations_of(secret).get(names.LAST_ACCESS, ""))
    if used is None:
        return unused
    return min(unused, used + timedelta(seconds=settings.seconds(setting(settings.NODE_TOKEN_USED))))


def is_invalidated(secret: Object) -> bool:
    return names.TOKEN_INVALIDATED in annotations_of(secret)


def counts(secret: Object, setting: Callable[[str], str], now: datetime) -> bool:
    ends = ends_at(secret, setting)
    return not is_invalidated(secret) and (ends is None or now < ends)
