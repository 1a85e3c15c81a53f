"""Hash formats of tokens, reasons to reject a token, and lifetimes."""

from __future__ import annotations

import hashlib
from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from herder.api.identity.authn import hashes
from herder.api.identity.authn.hashes import hash_key, matches, new_key
from herder.api.identity.authn.lifetimes import granted_ttl
from herder.api.identity.authn.tokens import (
    NewToken,
    from_secret,
    from_token,
    group_names,
    key_matches,
    problem,
    token_object,
    token_secret,
    user_problem,
)
from herder.api.identity.names import SESSION, TOKEN_HASHED, provisioning_user
from herder.api.management.names import TOKEN_ALPHABET
from herder.engine.meta.kinds import Object

KEY = "d" * 54
NOW = datetime(2026, 1, 1, tzinfo=UTC)
# The key as Rancher hashed it.
SHA3 = "$3:1:uFrxm43ggfw:zsN1zEFC7SvABTdR58o7yjIqfrI4cQ/HSYz3jBwwVnx5X+/ph4etGDIU9dvIYuy1IvnYUVe6a/Ar95xE+gfjhA"
SHA256 = f"$2:uFrxm43ggfw:{hashes._encoded(hashlib.sha256(hashes._decoded('uFrxm43ggfw') + KEY.encode()).digest())}"
SCRYPT = "$1:b85af19b8de081fc:15:8:1:" + hashes._encoded(
    hashlib.scrypt(KEY.encode(), salt=bytes.fromhex("b85af19b8de081fc"), n=1 << 15, r=8, p=1, maxmem=1 << 26, dklen=64)
)


@pytest.mark.parametrize("stored", [SHA3, SHA256, SCRYPT], ids=["sha3", "sha256", "scrypt"])
def test_a_key_matches_its_hash_in_every_format_and_no_other_key_does(stored: str) -> None:
    assert matches(KEY, stored)
    assert not matches(KEY[:-1] + "b", stored)
    assert not matches("", stored)


@pytest.mark.parametrize(
    "stored",
    ["", KEY, "$", "$3", "$3:1::", "$3:1:uFrxm43ggfw:", "$3:1:%%%:x", "$2::", "$4:1:a:b", "$1:zz:15:8:1:x",
     "$1:b85af19b8de081fc:30:8:1:x", SHA3 + "A", SHA3[:-1]],
)  # fmt: skip
def test_an_incomplete_hash_matches_nothing(stored: str) -> None:
    assert not matches(KEY, stored)
    assert not matches(stored, stored), "a hash is not its own key"


def test_keys_use_the_whole_alphabet_without_bias() -> None:
    """CVE-2022-43755: predictable tokens."""
    random = Random(1)
    keys = [new_key(random.randbytes) for _ in range(2000)]
    assert len(set(keys)) == 2000
    assert {len(key) for key in keys} == {54}
    counted = Counter("".join(keys))
    assert set(counted) == set(TOKEN_ALPHABET)
    expected = 2000 * 54 / len(TOKEN_ALPHABET)
    assert all(0.9 < count / expected < 1.1 for count in counted.values())
    # Bytes from 243 on are skipped: their remainders would make the first characters more likely.
    assert new_key(lambda count: bytes([250, 1]) * count) == TOKEN_ALPHABET[1] * 54


def token(**fields: Any) -> Object:
    obj = token_object(NewToken("u-1", "alice"), "token-1", hash_key(KEY, Random(2).randbytes))
    obj["metadata"]["creationTimestamp"] = "2025-12-31T00:00:00Z"
    return obj | fields


def test_new_tokens_hold_hashes_only() -> None:
    secret = token_secret(NewToken("u-1", "alice"), "token-1", hash_key(KEY, Random(2).randbytes), "uid", NOW)
    for obj in (token(), secret):
        assert KEY not in str(obj)
    secret["metadata"]["creationTimestamp"] = "2025-12-31T00:00:00Z"
    for record in (from_token(token()), from_secret(secret)):
        assert key_matches(record, KEY)
        assert (record.user, record.login_name, record.principal) == ("u-1", "alice", "local://u-1")


def test_an_unhashed_key_is_accepted_but_a_hash_is_never_a_key() -> None:
    old = token(token=KEY)
    old["metadata"]["annotations"] = {}
    assert key_matches(from_token(old), KEY)
    # A hash that leaked must not work as a key, even if the annotation is missing.
    hash_alone = token(token=SHA3)
    hash_alone["metadata"]["annotations"] = {}
    assert not key_matches(from_token(hash_alone), SHA3)
    assert key_matches(from_token(hash_alone), KEY)
    # A value that is annotated as a hash is not compared as a key.
    annotated = token(token=KEY)
    assert annotated["metadata"]["annotations"] == {TOKEN_HASHED: "true"}
    assert not key_matches(from_token(annotated), KEY)


@pytest.mark.parametrize("stored", ["", None])
def test_a_token_without_a_key_matches_nothing(stored: str | None) -> None:
    empty = token(token=stored)
    empty["metadata"]["annotations"] = {}
    assert not key_matches(from_token(empty), "")
    assert not key_matches(from_token(empty), KEY)
    assert not key_matches(None, KEY)


DAY_MS = 24 * 3600 * 1000
IDLE = timedelta(hours=16)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"lastUsedAt": "2025-12-31T23:00:00Z"}, ""),
        ({"lastUsedAt": "2025-12-31T23:00:00Z", "enabled": False}, "disabled"),
        ({"lastUsedAt": "2025-12-31T23:00:00Z", "ttl": DAY_MS}, "expired"),
        ({"lastUsedAt": "2025-12-31T23:00:00Z", "ttl": DAY_MS + 1}, ""),
        ({}, "idle"),
        ({"lastUsedAt": "2025-12-31T08:00:00Z"}, "idle"),
        ({"activityLastSeenAt": "2025-12-31T08:00:01Z"}, ""),
        ({"lastUsedAt": "2025-12-31T23:00:00Z", "authProvider": "github"}, 'provider "github"'),
    ],
)
def test_reasons_to_reject_a_token(fields: Object, expected: str) -> None:
    found = problem(from_token(token(**fields)), NOW, session_idle=IDLE)
    assert expected in found
    assert bool(found) == bool(expected)


def test_only_sessions_have_an_idle_timeout() -> None:
    lasting = token()
    lasting["metadata"]["labels"] = {}
    assert problem(from_token(lasting), NOW, session_idle=IDLE) == ""
    assert from_token(token()).kind == SESSION


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        (None, "does not exist"),
        ({"metadata": {"name": "u-1"}}, ""),
        ({"metadata": {"name": "u-1"}, "enabled": True}, ""),
        ({"metadata": {"name": "u-1"}, "enabled": False}, "disabled"),
        ({"metadata": {"name": "u-1", "deletionTimestamp": "2026-01-01T00:00:00Z"}}, "does not exist"),
    ],
)
def test_a_token_is_rejected_without_an_enabled_user(user: Object | None, expected: str) -> None:
    """CVE-2023-22650: tokens that outlived their users."""
    found = user_problem(from_token(token()), user)
    assert expected in found
    assert bool(found) == bool(expected)


def test_system_groups_are_dropped_from_principals() -> None:
    principals = ["github_team://1", "local://u-1", "system:masters", "system:serviceaccounts"]
    assert group_names(principals) == ("github_team://1",)


@pytest.mark.parametrize(
    ("requested", "default", "maximum", "ms"),
    [
        (0, 10, 20, 600_000),
        (0, 0, 20, 1_200_000),
        (0, 0, 0, 0),
        (0, 30, 20, 1_200_000),
        (5_000, 10, 20, 5_000),
        (9_999_999, 10, 20, 1_200_000),
        (9_999_999, 10, 0, 9_999_999),
        (-1, 10, 20, 1_200_000),
        (-1, 10, 0, 0),
    ],
)
def test_a_requested_ttl_is_limited_by_the_settings(requested: int, default: int, maximum: int, ms: int) -> None:
    assert granted_ttl(requested, default_minutes=default, max_minutes=maximum) == ms


def test_the_user_of_a_provisioned_cluster_has_a_stable_name() -> None:
    assert provisioning_user("fleet-default", "demo") == "u-l3jmhncqjg"
