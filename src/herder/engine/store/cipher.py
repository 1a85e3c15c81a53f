"""Encryption at rest: AES-256-GCM, bound to the object and the revision that a value belongs to.

Binding means that a value moved to another row (another name, an older revision) does not decrypt. The key file
holds one key per line in base64; the first encrypts, all decrypt. To rotate, put a new key on the first line, open the
store and call `Store.reseal`; after that the old one is no longer needed, but for backups made before.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from herder.engine.store.errors import KeyMissing, StoreError
from herder.engine.store.files import create_durably
from herder.engine.store.records import Key

KEY_BYTES = 32
_NONCE_BYTES = 12
_ID_CHARACTERS = 16


class Cipher:
    """Seals and opens values. A sealed value is the key's id, the nonce, and the ciphertext with its tag."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys or any(len(key) != KEY_BYTES for key in keys):
            raise StoreError(f"encryption needs at least one key, each of {KEY_BYTES} bytes")
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # costly to load, and not everyone encrypts

        self._keys = {key_id(key): AESGCM(key) for key in keys}
        self.writes_with = key_id(keys[0])

    @classmethod
    def load_or_create(cls, path: Path) -> Cipher:
        """Read the key file; where there is none, make one with a new key that is on disk before it is used."""
        try:
            return cls.load(path)
        except FileNotFoundError:
            line = base64.b64encode(os.urandom(KEY_BYTES)) + b"\n"
            create_durably(path, line)
            return cls.load(path)

    @classmethod
    def load(cls, path: Path) -> Cipher:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise StoreError(f"key file {path} must be readable by its owner alone (mode 0600, found {mode:04o})")
            lines = file.read().split()
        try:
            return cls([base64.b64decode(line, validate=True) for line in lines])
        except (binascii.Error, StoreError):
            raise StoreError(f"key file {path} must hold one base64 key of {KEY_BYTES} bytes per line") from None

    def knows(self, key_id: str) -> bool:
        return key_id in self._keys

    def seal(self, key: Key, revision: int, value: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._keys[self.writes_with].encrypt(nonce, value, _bound_to(key, revision))
        return self.writes_with.encode() + nonce + sealed

    def open(self, key: Key, revision: int, sealed: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        used = sealed[:_ID_CHARACTERS].decode("ascii", "replace")
        if used not in self._keys:
            raise KeyMissing(missing([used]))
        nonce = sealed[_ID_CHARACTERS : _ID_CHARACTERS + _NONCE_BYTES]
        try:
            return self._keys[used].decrypt(nonce, sealed[_ID_CHARACTERS + _NONCE_BYTES :], _bound_to(key, revision))
        except (InvalidTag, ValueError):
            raise StoreError(f"the encrypted value of {key} at revision {revision} was altered on disk") from None


def key_id(key: bytes) -> str:
    """Names a key without telling anything about it."""
    return hashlib.sha256(b"herder store key\0" + key).hexdigest()[:_ID_CHARACTERS]


def missing(ids: Sequence[str]) -> str:
    return f"the store is encrypted with key {', '.join(ids)}, which the key file does not hold; put it back and retry"


def _bound_to(key: Key, revision: int) -> bytes:
    return f"{key.resource}/{key.namespace}/{key.name}/{revision}".encode()
