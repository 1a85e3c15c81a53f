"""Ever longer waits for who guesses, and none for others."""

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


def test_waits_double_up_to_a_limit(clock: Clock) -> None:
    guarded, waits = LoginThrottle(clock), []
    for _ in range(20):
        while wait := guarded.attempt("alice", "10.0.0.1"):
            waits.append(wait)
            clock.now += wait
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, *[300.0] * 6]


def test_others_do_not_wait(clock: Clock) -> None:
    guarded = LoginThrottle(clock)
    for number in range(100):
        guarded.attempt("alice", f"10.0.0.{number % 10}")
    assert guarded.attempt("alice", "10.0.0.1")
    assert not guarded.attempt("alice", "10.0.1.1"), "the owner is elsewhere"
    assert not guarded.attempt("bob", "10.0.0.1")


def test_an_address_that_tries_many_users_waits_too(clock: Clock) -> None:
    guarded = LoginThrottle(clock)
    assert not any(guarded.attempt(f"user{n}", "10.0.0.1") for n in range(20))
    assert guarded.attempt("another", "10.0.0.1")
    assert not guarded.attempt("another", "10.0.0.2")


def test_logging_in_as_oneself_does_not_excuse_guesses_at_others(clock: Clock) -> None:
    guarded = LoginThrottle(clock)
    for number in range(20):
        assert not guarded.attempt(f"victim{number}", "10.0.0.1")
        if not guarded.attempt("me", "10.0.0.1"):
            guarded.succeeded("me", "10.0.0.1")
    assert guarded.attempt("one more", "10.0.0.1")


def test_all_addresses_of_one_network_of_ipv6_are_one(clock: Clock) -> None:
    guarded = LoginThrottle(clock)
    for number in range(20):
        guarded.attempt(f"user{number}", f"2001:db8::{number:x}")
    assert guarded.attempt("x", "2001:db8::ffff")
    assert not guarded.attempt("x", "2001:db8:0:1::1")
    for number in range(20):
        guarded.attempt(f"user{number}", "::ffff:10.0.0.9")
    assert guarded.attempt("y", "10.0.0.9")


def test_failures_are_forgotten(clock: Clock) -> None:
    guarded = LoginThrottle(clock)
    for _ in range(5):
        guarded.attempt("alice", "10.0.0.1")
    clock.now += 3601
    assert [guarded.attempt("alice", "10.0.0.1") for _ in range(5)] == [0.0] * 5
    guarded.succeeded("alice", "10.0.0.1")
    assert not guarded.attempt("alice", "10.0.0.1")


def test_what_is_kept_is_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "MAX_ENTRIES", 10)
    guarded = LoginThrottle(clock)
    for number in range(100):
        guarded.attempt(f"user{number}", f"10.0.0.{number}")
        guarded.succeeded(f"other{number}", f"10.0.1.{number}")
    kept = (guarded._accounts, guarded._sources, guarded._successes)
    assert [len(each) for each in kept] == [10, 10, 10]


def test_networks_of_one_site_share_a_larger_allowance(clock: Clock) -> None:
    guarded = LoginThrottle(clock)
    assert not any(guarded.attempt("alice", f"2001:db8:0:{number:x}::1") for number in range(100))
    assert guarded.attempt("alice", "2001:db8:0:ffff::1")
    assert not guarded.attempt("alice", "2001:db8:1::1")
