"""Size limits of request bodies and stored objects, equal to those of kube-apiserver and etcd."""

from __future__ import annotations

from herder.engine.apiserver.registry.storage_codec import encoder
from herder.engine.meta.errors import RequestEntityTooLarge
from herder.engine.meta.kinds import Object
from herder.engine.store import Encode

BODY_BYTES = 3 << 20
STORED_BYTES = 3 << 19  # etcd's default limit of 1.5 MiB per request


def check_body_size(size: int) -> None:
    if size > BODY_BYTES:
        raise RequestEntityTooLarge(f"Request entity too large: limit is {BODY_BYTES}")


def check_stored_size(obj: Object) -> None:
    """Check the stored size of an object ahead of the write, with the effects of `bounded_encoder`.

    Large objects are checked in the executor's thread; this way the event loop does not encode them twice.
    """
    bounded_encoder(obj)(0)


def bounded_encoder(obj: Object) -> Encode:
    """Return the encoder that the store writes `obj` with. It rejects an object that is too large.

    managedFields are bookkeeping: an object that is too large only because of them is stored without.
    """
    encode = encoder(obj)

    def within_limit(revision: int) -> bytes:
        value = encode(revision)
        if len(value) > STORED_BYTES and obj["metadata"].pop("managedFields", None) is not None:
            value = encode(revision)
        if len(value) > STORED_BYTES:
            raise RequestEntityTooLarge(f"etcdserver: request is too large (limit is {STORED_BYTES} bytes)")
        return value

    return within_limit
