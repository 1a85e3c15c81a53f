"""How large things may be: the sizes that the real server and its etcd accept."""

from __future__ import annotations

from herder.engine.apiserver.stored import encode
from herder.engine.meta.errors import RequestEntityTooLarge
from herder.engine.meta.kinds import Object

BODY_BYTES = 3 << 20
STORED_BYTES = 3 << 19  # etcd's default of 1.5 MiB for one request


def check_body_size(size: int) -> None:
    if size > BODY_BYTES:
        raise RequestEntityTooLarge(f"Request entity too large: limit is {BODY_BYTES}")


def check_stored_size(obj: Object) -> None:
    """Managers are bookkeeping and may be large: an object that is too large only with them is kept without."""
    size = len(encode(obj))
    if size <= STORED_BYTES:
        return
    if obj["metadata"].pop("managedFields", None) is not None and len(encode(obj)) <= STORED_BYTES:
        return
    raise RequestEntityTooLarge(f"etcdserver: request is too large (limit is {STORED_BYTES} bytes)")
