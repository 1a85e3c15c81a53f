"""Passwords of local users: what they may be, and how they are kept.

scrypt with N = 2^16 takes 0.2 s and 64 MiB on the class of machine that this was written on: a login is not
held up by it, and a list of guesses is.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from herder.api.identity.hashes import Entropy

SHORTEST, LONGEST = 12, 256
SCHEME = "scrypt"
_LOG_N, _R, _P, _BYTES, _SALT_BYTES = 16, 8, 1, 64, 16
_MOST_LOG_N = 20
_MEMORY_MARGIN = 16 * 1024 * 1024


def rule_broken(username: str, password: str) -> str:
    """What is wrong with a new password, without repeating it; empty where nothing is."""
    if len(password) < SHORTEST:
        return f"must have at least {SHORTEST} characters"
    if len(password) > LONGEST:
        return f"must have at most {LONGEST} characters"
    if password.casefold() == username.casefold():
        return "must not be the name of the user"
    return "must not be one character repeated" if len(set(password)) == 1 else ""


def hashed(password: str, entropy: Entropy) -> str:
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
    if not (0 < log_n <= _MOST_LOG_N and 0 < r <= 32 and 0 < p <= 16):
        raise ValueError("a cost that we do not pay")
    memory = 128 * r * (1 << log_n) + _MEMORY_MARGIN
    return hashlib.scrypt(password.encode(), salt=salt, n=1 << log_n, r=r, p=p, maxmem=memory, dklen=_BYTES)


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


UNKNOWN = f"{SCHEME}${_LOG_N}${_R}${_P}${_text(bytes(_SALT_BYTES))}${_text(bytes(_BYTES))}"
"""Compared with where there is no such user: it matches nothing, and takes as long."""


def is_bcrypt(kept: str) -> bool:
    """What upstream keeps in a User's `password`."""
    return kept.startswith(("$2a$", "$2b$", "$2y$"))
