"""Increasing delays for clients that guess passwords, and none for others."""

from __future__ import annotations

import pytest

from herder.gateway.identity import throttle
from herder.gateway.identity.throttle import LoginThrottle


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_delays_double_up_to_a_limit(clock: Clock) -> None:
    limiter, waits = LoginThrottle(clock), []
    for _ in range(20):
        while wait := limiter.attempt("alice", "10.0.0.1"):
            waits.append(wait)
            clock.now += wait
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, *[300.0] * 6]


def test_other_users_and_sources_are_not_delayed(clock: Clock) -> None:
    limiter = LoginThrottle(clock)
    for number in range(100):
        limiter.attempt("alice", f"10.0.0.{number % 10}")
    assert limiter.attempt("alice", "10.0.0.1")
    assert not limiter.attempt("alice", "10.0.1.1"), "the owner is elsewhere"
    assert not limiter.attempt("bob", "10.0.0.1")


def test_a_source_that_tries_many_users_is_delayed(clock: Clock) -> None:
    limiter = LoginThrottle(clock)
    assert not any(limiter.attempt(f"user{n}", "10.0.0.1") for n in range(20))
    assert limiter.attempt("another", "10.0.0.1")
    assert not limiter.attempt("another", "10.0.0.2")


def test_an_own_login_does_not_reset_failures_of_the_source(clock: Clock) -> None:
    limiter = LoginThrottle(clock)
    for number in range(20):
        assert not limiter.attempt(f"victim{number}", "10.0.0.1")
        if not limiter.attempt("me", "10.0.0.1"):
            limiter.succeeded("me", "10.0.0.1")
    assert limiter.attempt("one more", "10.0.0.1")


def test_addresses_of_one_ipv6_network_count_as_one(clock: Clock) -> None:
    limiter = LoginThrottle(clock)
    for number in range(20):
        limiter.attempt(f"user{number}", f"2001:db8::{number:x}")
    assert limiter.attempt("x", "2001:db8::ffff")
    assert not limiter.attempt("x", "2001:db8:0:1::1")
    for number in range(20):
        limiter.attempt(f"user{number}", "::ffff:10.0.0.9")
    assert limiter.attempt("y", "10.0.0.9")


def test_failures_expire(clock: Clock) -> None:
    limiter = LoginThrottle(clock)
    for _ in range(5):
        limiter.attempt("alice", "10.0.0.1")
    clock.now += 3601
    assert [limiter.attempt("alice", "10.0.0.1") for _ in range(5)] == [0.0] * 5
    limiter.succeeded("alice", "10.0.0.1")
    assert not limiter.attempt("alice", "10.0.0.1")


def test_recorded_entries_are_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "MAX_ENTRIES", 10)
    limiter = LoginThrottle(clock)
    for number in range(100):
        limiter.attempt(f"user{number}", f"10.0.0.{number}")
        limiter.succeeded(f"other{number}", f"10.0.1.{number}")
    tables = (limiter._accounts, limiter._sources, limiter._successes)
    assert [len(each) for each in tables] == [10, 10, 10]


def test_networks_of_one_site_share_a_larger_allowance(clock: Clock) -> None:
    limiter = LoginThrottle(clock)
    assert not any(limiter.attempt("alice", f"2001:db8:0:{number:x}::1") for number in range(100))
    assert limiter.attempt("alice", "2001:db8:0:ffff::1")
    assert not limiter.attempt("alice", "2001:db8:1::1")
