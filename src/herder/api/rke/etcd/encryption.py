"""Keys that encrypt the Secrets of a cluster, where the manager owns them: on kubeadm and embedded servers.

A key has a generation. One Secret has all keys that are needed, and `status.encryptionKeys` says which of them servers
load: the first encrypts, all decrypt. Snapshots name the generations that they need.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from herder.api.machines.names import safe_concat
from herder.engine.meta.kinds import Object

STATUS = "encryptionKeys"
SNAPSHOT_METADATA = "encryption-keys"
"""Key in the metadata of snapshots: generations, separated by commas."""
BEFORE = 0
"""Stands for what encrypted Secrets before the manager owned keys: nothing on kubeadm, and the server's own key on the
embedded distribution."""
MAKE_KEY = "cluster-encryption-key"
"""Effect: add a key to the Secret."""
_GENERATIONS = re.compile(r"[0-9]{1,9}(,[0-9]{1,9}){0,63}")


def keys_secret(control_plane: str) -> str:
    return safe_concat(control_plane, "rke", "encryption")


def data_key(generation: int) -> str:
    """Name of a key in the data of the Secret."""
    return f"key-{generation}"


def generation_of(data_key: str) -> int | None:
    found = re.fullmatch(r"key-([1-9][0-9]{0,8})", data_key)
    return int(found[1]) if found else None


@dataclass(frozen=True)
class KeyState:
    """`status.encryptionKeys`."""

    loaded: tuple[int, ...]  # generations that servers load; the first encrypts
    stored: tuple[int, ...]  # generations in the Secret
    rotation: str = ""  # the run that added the newest

    @property
    def newest(self) -> int:
        return max((*self.loaded, *self.stored), default=BEFORE)

    def prepared(self, rotation: str) -> KeyState:
        """With another key, which only decrypts. Once for each rotation."""
        if self.rotation == rotation:
            return self
        new = self.newest + 1
        return KeyState((*self.loaded, new), (*self.stored, new), rotation)

    def rotated(self) -> KeyState:
        """The newest key encrypts."""
        newest = self.newest
        return replace(self, loaded=(newest, *(each for each in self.loaded if each != newest)))

    def reduced(self, needed: Iterable[int]) -> KeyState:
        """Only the newest key is loaded; before the manager owned keys, the server's own key stays while needed."""
        own = (BEFORE,) if BEFORE in self.loaded and BEFORE in needed else ()
        return replace(self, loaded=(self.newest, *own))

    def with_keys(self, needed: Iterable[int]) -> KeyState:
        """Servers load these keys too, to read what they have encrypted."""
        return replace(self, loaded=tuple(dict.fromkeys((*self.loaded, *sorted(needed)))))

    def pruned(self, needed: Iterable[int]) -> KeyState:
        kept = {*self.loaded, *needed}
        return replace(self, stored=tuple(each for each in self.stored if each in kept))

    def missing(self, needed: Iterable[int]) -> list[int]:
        return sorted(each for each in needed if each != BEFORE and each not in self.stored)

    def to_status(self) -> Object:
        found = {"loaded": [*self.loaded], "stored": [*self.stored], "rotation": self.rotation}
        return {STATUS: {name: value for name, value in found.items() if value}}

    @staticmethod
    def of(control_plane: Object) -> KeyState | None:
        """None for a cluster whose keys the manager does not own, or not yet."""
        stored: Mapping[str, Any] = (control_plane.get("status") or {}).get(STATUS) or {}
        if not stored.get("loaded"):
            return None
        loaded, known = (tuple(map(int, stored.get(name) or ())) for name in ("loaded", "stored"))
        return KeyState(loaded, known, str(stored.get("rotation") or ""))


def needed_by(snapshots: Iterable[Object], stored: Iterable[int]) -> set[int]:
    """Generations that these ETCDSnapshots need.

    Snapshots with metadata that names none are older than the keys of the manager. One whose metadata is unknown may
    need all keys that are stored.
    """
    unknown = (BEFORE, *stored)
    return {generation for each in snapshots for generation in _named(each, unknown)}


def names_keys(text: str) -> bool:
    """Whether this value of the metadata of a snapshot names generations. Servers report it."""
    return _GENERATIONS.fullmatch(text) is not None


def _named(snapshot: Object, unknown: tuple[int, ...]) -> tuple[int, ...]:
    encoded = str((snapshot.get("snapshotFile") or {}).get("metadata") or "")
    try:
        metadata = msgspec.json.decode(base64.b64decode(encoded), type=dict[str, str])
    except (ValueError, RecursionError):
        return unknown
    found = metadata.get(SNAPSHOT_METADATA)
    if found is None:
        return (BEFORE,)
    return tuple(map(int, found.split(","))) if names_keys(found) else unknown
