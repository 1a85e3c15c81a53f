"""Read a machine's state Secret: how far provisioning got, and the driver's record of the machine."""

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
"""Finalizer on state Secrets: they exist until the machine is known to be removed."""

# Drivers write this Secret, and not all are ours: it contains some certificates, keys and one config.json.
_MAX_BYTES = 8 << 20
# total size of all config.json files, which are decoded on the event loop and usually have a few KiB
_MAX_CONFIG_BYTES = 1 << 20
_MAX_ENTRIES = 1000


_READ_ERRORS = (ValueError, OverflowError, EOFError, tarfile.TarError, RecursionError)
"""Exceptions that an invalid record may raise."""


class Recorded(StrEnum):
    NOTHING = "nothing"  # nothing was created: the CLI records what it is going to create first
    BEGUN = "begun"  # something may have been created
    CREATED = "created"
    FOREIGN = "foreign"  # written by rancher-machine, which does not record its progress
    UNREADABLE = "unreadable"


def recorded(secret: Object | None) -> Recorded:
    encoded = ((secret or {}).get("data") or {}).get(STATE_KEY)
    if not encoded:
        return Recorded.NOTHING
    try:
        configs = _configs(base64.b64decode(encoded))
    except _READ_ERRORS:
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
    """Return the machine's configuration, including its addresses; None if there is none or it cannot be read."""
    try:
        configs = _configs(base64.b64decode(extracted))
    except _READ_ERRORS:
        return None
    return configs[0] if configs else None


def _configs(archive: bytes) -> list[Object]:
    with tarfile.TarFile(fileobj=io.BytesIO(gunzip(archive, _MAX_BYTES))) as tar:
        found = [entry for entry in _entries(tar) if entry.isfile() and _is_config(entry.name)]
        if sum(entry.size for entry in found) > _MAX_CONFIG_BYTES:
            raise ValueError("config.json is too large")
        return [_object(tar, entry) for entry in found]


def _entries(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for number, entry in enumerate(tar):
        if number == _MAX_ENTRIES:
            raise ValueError("the archive has too many entries")
        if entry.issparse():  # a few bytes of a sparse file stand for gigabytes of memory
            raise ValueError("the archive contains a sparse file")
        yield entry


def _is_config(name: str) -> bool:
    return "/machines/" in name and name.endswith("/config.json")


def _object(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> Object:
    stream = tar.extractfile(entry)
    config = msgspec.json.decode(stream.read() if stream is not None else b"")
    if not isinstance(config, dict):
        raise ValueError("config.json must be a JSON object")
    return config
