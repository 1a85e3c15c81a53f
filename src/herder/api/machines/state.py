"""What a machine's state Secret says: how far the machine CLI came, and what it knows of the machine."""

from __future__ import annotations

import base64
import io
import tarfile
from collections.abc import Iterator
from enum import StrEnum

import msgspec

from herder.api.gzipped import gunzip
from herder.api.machines.names import STATE_KEY
from herder.engine.meta.kinds import Object

STATE_FINALIZER = "machine.herder.io/state"
"""On state Secrets: they live until the machine is removed for certain."""

# Drivers write this Secret, and not all of them are ours: a record is some certificates, keys and one config.json.
_LARGEST = 8 << 20
_LARGEST_CONFIGS = 1 << 20  # of all config.json together: they are decoded on the event loop, and have some KiB
_MOST_ENTRIES = 1000


_BAD = (ValueError, OverflowError, EOFError, tarfile.TarError, RecursionError)
"""What a record that cannot be read raises, in whatever part of it."""


class Recorded(StrEnum):
    NOTHING = "nothing"  # so nothing was made: the CLI writes down what it is going to make
    BEGUN = "begun"  # something may have been made
    CREATED = "created"
    FOREIGN = "foreign"  # the Go program's, which does not say how far it came
    UNREADABLE = "unreadable"


def recorded(secret: Object | None) -> Recorded:
    encoded = ((secret or {}).get("data") or {}).get(STATE_KEY)
    if not encoded:
        return Recorded.NOTHING
    try:
        configs = _configs(base64.b64decode(encoded))
    except _BAD:
        return Recorded.UNREADABLE
    if not configs:
        return Recorded.NOTHING
    phases = {_phase(config) for config in configs}
    if phases - {"", "created"}:
        return Recorded.BEGUN
    return Recorded.FOREIGN if "" in phases else Recorded.CREATED


def _phase(config: Object) -> str:
    own = config.get("Herder")
    return str(own.get("Phase", "")) if isinstance(own, dict) else ""


def driver_config(extracted: str) -> Object | None:
    """What the record says of the machine, its addresses among it; None where there is nothing that can be read."""
    try:
        configs = _configs(base64.b64decode(extracted))
    except _BAD:
        return None
    return configs[0] if configs else None


def _configs(archive: bytes) -> list[Object]:
    with tarfile.TarFile(fileobj=io.BytesIO(gunzip(archive, _LARGEST))) as tar:
        found = [entry for entry in _entries(tar) if entry.isfile() and _is_config(entry.name)]
        if sum(entry.size for entry in found) > _LARGEST_CONFIGS:
            raise ValueError("a config.json that is larger than that of any machine")
        return [_object(tar, entry) for entry in found]


def _entries(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for number, entry in enumerate(tar):
        if number == _MOST_ENTRIES:
            raise ValueError("more entries than any record of a machine has")
        if entry.issparse():  # a few bytes of an archive would stand for gigabytes of memory
            raise ValueError("a sparse file, which no record of a machine has")
        yield entry


def _is_config(name: str) -> bool:
    return "/machines/" in name and name.endswith("/config.json")


def _object(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> Object:
    stream = tar.extractfile(entry)
    config = msgspec.json.decode(stream.read() if stream is not None else b"")
    if not isinstance(config, dict):
        raise ValueError("config.json holds no object")
    return config
