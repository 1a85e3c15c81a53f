"""Passwords of local users: requirements and hashing.

scrypt with N = 2^16 takes 0.2 s and 64 MiB on a common server: acceptable for a login, expensive for guessing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from herder.api.identity.authn.hashes import Entropy

MIN_LENGTH, MAX_LENGTH = 12, 256
SCHEME = "scrypt"
_LOG_N, _R, _P, _BYTES, _SALT_BYTES = 16, 8, 1, 64, 16
_MAX_LOG_N = 20
_MEMORY_MARGIN = 16 * 1024 * 1024


def password_problem(username: str, password: str) -> str:
    """Return what is wrong with a new password, without repeating it; "" if it is valid."""
    if len(password) < MIN_LENGTH:
        return f"must have at least {MIN_LENGTH} characters"
    if len(password) > MAX_LENGTH:
        return f"must have at most {MAX_LENGTH} characters"
    if password.casefold() == username.casefold():
        return "must not be the name of the user"
    return "must not be one character repeated" if len(set(password)) == 1 else ""


def hash_password(password: str, entropy: Entropy) -> str:
    salt = entropy(_SALT_BYTES)
    return f"{SCHEME}${_LOG_N}${_R}${_P}${_text(salt)}${_text(_derived(password, salt, _LOG_N, _R, _P))}"


def matches(password: str, kept: str) -> bool:
    match kept.split("$"):
        case [scheme, log_n, r, p, salt, derived] if scheme == SCHEME:
            try:
                cost = (int(log_n), int(r), int(p))
                wanted = base64.b64decode(derived, validate=True)
                found = _derived(password, base64.b64decode(salt, validate=True), *cost)
            except (ValueError, binascii.Error):
                return False
            return len(wanted) == _BYTES and hmac.compare_digest(found, wanted)
        case _:
            return False


def _derived(password: str, salt: bytes, log_n: int, r: int, p: int) -> bytes:
    if not (0 < log_n <= _MAX_LOG_N and 0 < r <= 32 and 0 < p <= 16):
        raise ValueError("scrypt cost out of range")
    memory = 128 * r * (1 << log_n) + _MEMORY_MARGIN
    return hashlib.scrypt(password.encode(), salt=salt, n=1 << log_n, r=r, p=p, maxmem=memory, dklen=_BYTES)


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


UNKNOWN = f"{SCHEME}${_LOG_N}${_R}${_P}${_text(bytes(_SALT_BYTES))}${_text(bytes(_BYTES))}"
"""Compared if there is no such user: it matches nothing, and takes as long."""


def is_bcrypt(kept: str) -> bool:
    """Whether it is the format upstream stores in a User's `password`."""
    return kept.startswith(("$2a$", "$2b$", "$2y$"))
