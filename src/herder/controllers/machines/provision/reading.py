"""Secrets that are read only when their content counts: nothing keeps what is in all Secrets of a cluster."""

from __future__ import annotations

import base64
from typing import NamedTuple

from herder.api.capi.kinds import SECRET, SECRET_METADATA
from herder.api.machines.credentials import Place
from herder.api.machines.names import STATE_SECRET_TYPE
from herder.controllers.machines.provision.scene import Scene
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision, Effect, Ref, waiting


class Read(NamedTuple):
    """`pending` until it has been read; then the Secret, or None where there is none."""

    secret: Object | None = None
    pending: Decision | None = None


def read(scene: Scene, place: Place, occasion: str = "", *, though_unseen: bool = False) -> Read:
    """A Secret as it is now; read again for each of its revisions, and for each occasion that must not rely on what was
    read before. One that nobody has seen is not looked for, unless it must be known for certain."""
    known = scene.view.get(SECRET_METADATA, place.name, place.namespace)
    if known is None and not though_unseen:
        return Read()
    revision = known["metadata"]["resourceVersion"] if known is not None else ""
    key = ("read-secret", scene.uid, place.namespace, place.name, revision, occasion)
    result = scene.view.result(key)
    if result is not None and result.done:
        if (
            known is not None
            and result.value is not None
            and result.value["metadata"]["uid"] != known["metadata"]["uid"]
        ):
            # It was read by its name, and may be another user's.
            message = f"Secret {place} was recreated while it was read"
            return Read(pending=waiting(message, Ref(SECRET, place.name, place.namespace)))
        return Read(result.value)
    arguments = {"namespace": place.namespace, "name": place.name}
    effect = Effect("read-secret", key, arguments, f"what is in Secret {place} is needed")
    message = f"Secret {place} is being read" if result is None else f"Secret {place} cannot be read: {result.error}"
    pending = waiting(message, Ref(SECRET, place.name, place.namespace))
    return Read(pending=Decision(effects=(effect,)) + pending)


def is_state(secret: Object | None) -> bool:
    """Whether what was read may be a machine's record. Users cannot create Secrets of this type: one of another type
    that has the name, which may be cut, is theirs to read and to change."""
    return secret is None or secret.get("type") == STATE_SECRET_TYPE


def texts(secret: Object) -> dict[str, str]:
    """Its data; what is not text is of no use to anybody here."""
    return {
        name: base64.b64decode(value).decode(errors="replace") for name, value in (secret.get("data") or {}).items()
    }
