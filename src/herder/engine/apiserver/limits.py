"""How large things may be: the sizes that the real server and its etcd accept."""

from __future__ import annotations

from herder.engine.apiserver.stored import encoder
from herder.engine.meta.errors import RequestEntityTooLarge
from herder.engine.meta.kinds import Object
from herder.engine.store import Encode

BODY_BYTES = 3 << 20
STORED_BYTES = 3 << 19  # etcd's default of 1.5 MiB for one request


def check_body_size(size: int) -> None:
    if size > BODY_BYTES:
        raise RequestEntityTooLarge(f"Request entity too large: limit is {BODY_BYTES}")


def fit(obj: Object) -> None:
    """Do what `bounded_encoder` does about an object that is too large before the store takes it: encoding one twice
    belongs beside the event loop."""
    bounded_encoder(obj)(0)


def bounded_encoder(obj: Object) -> Encode:
    """What the store needs to write `obj`; refuses one that is too large. Managers are bookkeeping and may be large:
    an object that is too large only with them is kept without."""
    encode = encoder(obj)

    def within_limit(revision: int) -> bytes:
        value = encode(revision)
        if len(value) > STORED_BYTES and obj["metadata"].pop("managedFields", None) is not None:
            value = encode(revision)
        if len(value) > STORED_BYTES:
            raise RequestEntityTooLarge(f"etcdserver: request is too large (limit is {STORED_BYTES} bytes)")
        return value

    return within_limit
