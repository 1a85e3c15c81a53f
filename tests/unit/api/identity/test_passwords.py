"""Password rules, and the slow hash of a password."""

from __future__ import annotations

from random import Random

import pytest

from herder.api.identity.authn import passwords
from herder.api.identity.authn.passwords import hash_password, matches, password_problem

GOOD = "correct horse battery"


@pytest.mark.parametrize(
    ("password", "expected"),
    [
        (GOOD, ""),
        ("short", "at least 12"),
        ("x" * 257, "at most 256"),
        ("administrator", "name of the user"),
        ("AdminiStrator", "name of the user"),
        ("aaaaaaaaaaaaaa", "repeated"),
    ],
)
def test_rules_of_a_password(password: str, expected: str) -> None:
    message = password_problem("administrator", password)
    assert expected in message
    assert bool(message) == bool(expected)
    assert password not in message


def test_a_password_matches_only_its_own_hash() -> None:
    stored = hash_password(GOOD, Random(1).randbytes)
    assert GOOD not in stored
    assert stored.startswith("scrypt$16$8$1$")
    assert matches(GOOD, stored)
    assert not matches(GOOD + "!", stored)
    assert stored != hash_password(GOOD, Random(2).randbytes), "each hash has its own salt"


@pytest.mark.parametrize(
    "stored",
    ["", GOOD, "scrypt", "scrypt$99$8$1$AA==$AA==", "scrypt$16$8$1$AA==$", "scrypt$16$8$1$AA==$AA==",
     "scrypt$x$8$1$AA==$AA==", "$2a$10$abcdefghijklmnopqrstuv", passwords.UNKNOWN],
)  # fmt: skip
def test_an_invalid_hash_matches_nothing(stored: str) -> None:
    assert not matches(GOOD, stored)
    assert not matches("", stored)
