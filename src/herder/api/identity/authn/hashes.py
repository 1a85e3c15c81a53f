"""Hashes of token keys, in every format that was ever written.

Keys have 250 random bits, so a fast hash is as good as a slow one; the newest format is one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable

from herder.api.management.names import TOKEN_ALPHABET, TOKEN_LENGTH

Entropy = Callable[[int], bytes]

SALT_BYTES = 8
_SCRYPT_LOG_N, _SCRYPT_R, _SCRYPT_P, _SCRYPT_BYTES = 15, 8, 1, 64
_SCRYPT_MEMORY = 64 * 1024 * 1024
# higher bytes are discarded, because they would bias the distribution
_UNBIASED_BELOW = 256 - 256 % len(TOKEN_ALPHABET)


def new_key(entropy: Entropy) -> str:
    key = ""
    while len(key) < TOKEN_LENGTH:
        unbiased = (byte for byte in entropy(TOKEN_LENGTH) if byte < _UNBIASED_BELOW)
        key += "".join(TOKEN_ALPHABET[byte % len(TOKEN_ALPHABET)] for byte in unbiased)
    return key[:TOKEN_LENGTH]


def hash_key(key: str, entropy: Entropy) -> str:
    """Hash in the newest format, the only one that is written."""
    return _sha3(key, entropy(SALT_BYTES))


def is_hash(kept: str) -> bool:
    """Whether the stored value is a hash: no key contains `$`.

    Treating it as a plain key would make a leaked hash as good as the key.
    """
    return kept.startswith("$")


def is_newest(kept: str) -> bool:
    return kept.startswith("$3:1:")


def is_slow(kept: str) -> bool:
    """Whether verification is too slow for the event loop."""
    return kept.startswith("$1:")


def matches(key: str, kept: str) -> bool:
    """Whether the key matches the hash; false for unknown formats."""
    try:
        return bool(key) and hmac.compare_digest(_hash_like(key, kept).encode(), kept.encode())
    except (ValueError, binascii.Error):
        return False


def _hash_like(key: str, kept: str) -> str:
    """Hash the key in the format of `kept`, with its salt."""
    match kept.split(":"):
        case ["$3", "1", salt, _]:
            return _sha3(key, _decoded(salt))
        case ["$2", salt, _]:
            return f"$2:{salt}:{_encoded(hashlib.sha256(_decoded(salt) + key.encode()).digest())}"
        case ["$1", salt, "15", "8", "1", _]:
            return f"$1:{salt}:15:8:1:{_encoded(_scrypt(key, bytes.fromhex(salt)))}"
        case _:
            raise ValueError("not a hash of a known format")


def _sha3(key: str, salt: bytes) -> str:
    return f"$3:1:{_encoded(salt)}:{_encoded(hashlib.sha3_512(salt + key.encode()).digest())}"


def _scrypt(key: str, salt: bytes) -> bytes:
    return hashlib.scrypt(
        key.encode(),
        salt=salt,
        n=1 << _SCRYPT_LOG_N,
        r=_SCRYPT_R,
        p=_SCRYPT_P,
        maxmem=_SCRYPT_MEMORY,
        dklen=_SCRYPT_BYTES,
    )


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


UNKNOWN = _sha3("", bytes(SALT_BYTES))
"""Compared if no such token exists, so that the response takes as long."""
