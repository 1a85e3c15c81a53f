"""What a password may be, and that it is kept as a slow hash."""

from __future__ import annotations

from random import Random

import pytest

from herder.api.identity.authn import passwords
from herder.api.identity.authn.passwords import hash_password, matches, password_problem

GOOD = "correct horse battery"


@pytest.mark.parametrize(
    ("password", "broken"),
    [
        (GOOD, ""),
        ("short", "at least 12"),
        ("x" * 257, "at most 256"),
        ("administrator", "name of the user"),
        ("AdminiStrator", "name of the user"),
        ("aaaaaaaaaaaaaa", "repeated"),
    ],
)
def test_rules_of_a_password(password: str, broken: str) -> None:
    told = password_problem("administrator", password)
    assert broken in told
    assert bool(told) == bool(broken)
    assert password not in told


def test_a_password_matches_its_hash_alone() -> None:
    kept = hash_password(GOOD, Random(1).randbytes)
    assert GOOD not in kept
    assert kept.startswith("scrypt$16$8$1$")
    assert matches(GOOD, kept)
    assert not matches(GOOD + "!", kept)
    assert kept != hash_password(GOOD, Random(2).randbytes), "each has a salt of its own"


@pytest.mark.parametrize(
    "kept",
    ["", GOOD, "scrypt", "scrypt$99$8$1$AA==$AA==", "scrypt$16$8$1$AA==$", "scrypt$16$8$1$AA==$AA==",
     "scrypt$x$8$1$AA==$AA==", "$2a$10$abcdefghijklmnopqrstuv", passwords.UNKNOWN],
)  # fmt: skip
def test_what_is_no_hash_of_ours_matches_nothing(kept: str) -> None:
    assert not matches(GOOD, kept)
    assert not matches("", kept)
