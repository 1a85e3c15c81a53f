"""Encryption at rest: AES-256-GCM with the object's key and revision as associated data.

A value that is moved to another row (another name, an older revision) therefore does not decrypt. The key file holds
one base64 key per line; the first encrypts, all decrypt. To rotate, insert a new key as the first line, open the store
and call `Store.reseal`. After that only backups made before need the old key.
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
    """Encrypts and decrypts values. A sealed value is the key ID, the nonce, and the ciphertext with its tag."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys or any(len(key) != KEY_BYTES for key in keys):
            raise StoreError(f"encryption keys: at least one key of {KEY_BYTES} bytes is required")
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # expensive import, needed only with encryption

        self._keys = {key_id(key): AESGCM(key) for key in keys}
        self.active_key_id = key_id(keys[0])

    @classmethod
    def load_or_create(cls, path: Path) -> Cipher:
        """Load the key file; if it does not exist, create it with a new key that is durable before it is used."""
        try:
            return cls.load(path)
        except FileNotFoundError:
            line = base64.b64encode(os.urandom(KEY_BYTES)) + b"\n"
            create_durably(path, line)
            return cls.load(path)

    @classmethod
    def load(cls, path: Path) -> Cipher:
        return cls(read_keys(path))

    def has_key(self, key_id: str) -> bool:
        return key_id in self._keys

    def seal(self, key: Key, revision: int, value: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._keys[self.active_key_id].encrypt(nonce, value, _associated_data(key, revision))
        return self.active_key_id.encode() + nonce + sealed

    def open(self, key: Key, revision: int, sealed: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        used = sealed[:_ID_CHARACTERS].decode("ascii", "replace")
        if used not in self._keys:
            raise KeyMissing(missing_keys_message([used]))
        nonce = sealed[_ID_CHARACTERS : _ID_CHARACTERS + _NONCE_BYTES]
        try:
            return self._keys[used].decrypt(
                nonce, sealed[_ID_CHARACTERS + _NONCE_BYTES :], _associated_data(key, revision)
            )
        except (InvalidTag, ValueError):
            raise StoreError(f"the encrypted value of {key} at revision {revision} was altered on disk") from None


def read_keys(path: Path) -> list[bytes]:
    """Return the keys of a key file, the active one first."""
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            raise StoreError(f"key file {path}: mode must be 0600, found {mode:04o}; run chmod 0600")
        lines = file.read().split()
    try:
        keys = [base64.b64decode(line, validate=True) for line in lines]
    except binascii.Error:
        keys = []
    if not keys or any(len(key) != KEY_BYTES for key in keys):
        raise StoreError(f"key file {path} must hold one base64 key of {KEY_BYTES} bytes per line")
    return keys


def key_id(key: bytes) -> str:
    """Return an identifier of a key that reveals nothing about it."""
    return hashlib.sha256(b"herder store key\0" + key).hexdigest()[:_ID_CHARACTERS]


def missing_keys_message(ids: Sequence[str]) -> str:
    return f"store is encrypted with key {', '.join(ids)}, which is not in the key file; restore the key and retry"


def _associated_data(key: Key, revision: int) -> bytes:
    return f"{key.resource}/{key.namespace}/{key.name}/{revision}".encode()
