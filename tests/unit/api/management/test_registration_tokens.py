"""Lifetimes of registration tokens, and the content of their Secret."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest

from herder.api.management import names
from herder.api.management.registration import Lifetime, Tokens, read_tokens, rotate_tokens, rotation_time, token_secret
from herder.api.settings import validate_value

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = Lifetime(timedelta(days=1), timedelta(hours=3))


@pytest.mark.parametrize(
    ("spec", "ttl", "grace"),
    [
        ({}, 43200, 180),
        ({"ttl": 60}, 60, 59),  # the grace period ends before the next token expires
        ({"ttl": 600, "gracePeriod": 20}, 600, 20),
        ({"ttl": 1, "gracePeriod": 1}, 30, 10),
        ({"ttl": None, "gracePeriod": None}, 43200, 180),
        ({"ttl": True}, 43200, 180),
    ],
)
def test_a_lifetime_comes_from_the_spec_or_the_settings(spec: dict[str, object], ttl: int, grace: int) -> None:
    assert Lifetime.of(spec, "43200", "180") == Lifetime(timedelta(minutes=ttl), timedelta(minutes=grace))


def test_rotation_times_of_many_clusters_are_spread() -> None:
    times = {rotation_time(NOW, DAY, f"uid-{number}") for number in range(100)}
    assert len(times) > 90
    assert all(NOW <= time < NOW + timedelta(hours=2, minutes=24) for time in times)
    month = Lifetime(timedelta(days=300), timedelta(hours=3))
    assert all(rotation_time(NOW, month, f"uid-{number}") < NOW + timedelta(days=1) for number in range(100))


def test_a_token_is_rotated_when_due_and_not_before() -> None:
    first = rotate_tokens(None, "first", DAY, NOW, "uid")
    assert first == Tokens("first", NOW + DAY.ttl)
    due = rotation_time(first.expires, DAY, "uid")
    assert rotate_tokens(first, "second", DAY, due - timedelta(seconds=1), "uid") is first
    second = rotate_tokens(first, "second", DAY, due, "uid")
    assert second == Tokens("second", due + DAY.ttl, "first", due + DAY.grace)
    third = rotate_tokens(second, "third", DAY, rotation_time(second.expires, DAY, "uid"), "uid")
    assert third.previous == "second", "only one previous token is kept"


@pytest.mark.parametrize("presented", ["", "firs", "firstly", "First", "\0"])
def test_only_the_exact_token_is_accepted(presented: str) -> None:
    assert not Tokens("first", NOW + DAY.ttl).accepts(presented, NOW)


def test_tokens_are_read_back_from_their_secret() -> None:
    registration = {"metadata": {"name": names.DEFAULT_TOKEN, "namespace": "c-m-meadow22"}}
    for tokens in (Tokens("first", NOW), Tokens("second", NOW, "first", NOW + DAY.grace)):
        secret = token_secret(registration, tokens, {"uid": "x"})
        assert secret["metadata"]["name"] == "crt-token-default-token"
        assert read_tokens(secret) == tokens


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"token": "Zmlyc3Q="},
        {"token": "", "expiresAt": "MjAyNi0wMS0wMVQwMDowMDowMFo="},
        {"token": "not base64", "expiresAt": "MjAyNi0wMS0wMVQwMDowMDowMFo="},
        {"token": "Zmlyc3Q=", "expiresAt": "c29vbg=="},
        {"token": 7, "expiresAt": None},
    ],
)
def test_a_malformed_secret_has_no_tokens(data: dict[str, object]) -> None:
    assert read_tokens({"data": data}) is None


@pytest.mark.parametrize("token", ["x; touch /tmp/x", "$(id)", "--server=https://other.example.com", "a\x1b[2J", "a/b"])
def test_a_token_with_shell_characters_is_rejected(token: str) -> None:
    """Editors of the cluster's namespace can write the Secret, and users run the registration command as root."""
    expires = base64.b64encode(b"2026-01-01T00:00:00Z").decode()
    assert read_tokens({"data": {"token": base64.b64encode(token.encode()).decode(), "expiresAt": expires}}) is None
    first = {"token": "Zmlyc3Q=", "expiresAt": expires, "previousToken": base64.b64encode(token.encode()).decode()}
    assert read_tokens({"data": first}) == Tokens("first", NOW)


def test_a_token_is_not_printed() -> None:
    assert "first" not in repr(Tokens("first", NOW, "first", NOW))


@pytest.mark.parametrize(
    ("url", "valid"),
    [
        ("https://manager.example.com", True),
        ("https://10.0.0.1:8443/path", True),
        ("https://[fd00::1]:8443", True),
        ("ftp://manager", False),
        ("https://manager; rm -rf /", False),
        ("https://$(id)", False),
        ("https://manager'", False),
    ],
)
def test_a_server_url_with_shell_characters_is_rejected(url: str, valid: bool) -> None:
    assert (validate_value("server-url", url) == []) is valid
