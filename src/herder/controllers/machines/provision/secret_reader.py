"""Read Secrets by effects, only when their content is needed: no cache holds the content of all Secrets."""

from __future__ import annotations

import base64
from typing import NamedTuple

from herder.api.capi.kinds import SECRET, SECRET_METADATA
from herder.api.machines.credentials import SecretKey
from herder.api.machines.names import STATE_SECRET_TYPE
from herder.controllers.machines.provision.scope import ProvisionScope
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision, Effect, Ref, waiting


class Read(NamedTuple):
    """Result of a read: `pending` while it is under way, then the Secret, or None if it does not exist."""

    secret: Object | None = None
    pending: Decision | None = None


def read(scope: ProvisionScope, place: SecretKey, purpose: str = "", *, bypass_cache: bool = False) -> Read:
    """Read a Secret, once per revision and purpose.

    A purpose forces a fresh read. A Secret that is not in the cache is assumed not to exist, unless `bypass_cache` is
    set.
    """
    known = scope.view.get(SECRET_METADATA, place.name, place.namespace)
    if known is None and not bypass_cache:
        return Read()
    revision = known["metadata"]["resourceVersion"] if known is not None else ""
    key = ("read-secret", scope.uid, place.namespace, place.name, revision, purpose)
    result = scope.view.result(key)
    if result is not None and result.done:
        if (
            known is not None
            and result.value is not None
            and result.value["metadata"]["uid"] != known["metadata"]["uid"]
        ):
            # It was read by name, and the new one may be another user's.
            message = f"Secret {place} was recreated while being read; reading it again"
            return Read(pending=waiting(message, Ref(SECRET, place.name, place.namespace)))
        return Read(result.value)
    arguments = {"namespace": place.namespace, "name": place.name}
    effect = Effect("read-secret", key, arguments, f"read Secret {place}")
    message = f"Secret {place} is being read" if result is None else f"Secret {place} cannot be read: {result.error}"
    pending = waiting(message, Ref(SECRET, place.name, place.namespace))
    return Read(pending=Decision(effects=(effect,)) + pending)


def is_state(secret: Object | None) -> bool:
    """Whether the Secret may be a machine's state.

    Users cannot create Secrets of this type. A Secret of another type with the same name, which may be truncated,
    belongs to a user.
    """
    return secret is None or secret.get("type") == STATE_SECRET_TYPE


def texts(secret: Object) -> dict[str, str]:
    """Decoded data; invalid UTF-8 is replaced."""
    return {
        name: base64.b64decode(value).decode(errors="replace") for name, value in (secret.get("data") or {}).items()
    }
