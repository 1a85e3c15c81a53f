"""Login throttle: slows down password guessing without locking out account owners.

Failures count against their source: per account and source, and per source for all accounts. They never count against
the account alone, or anyone could lock its owner out. A correct password from an unthrottled source always succeeds.
Guesses from many sources are bounded by the cost of hashing (`passwords.py`).

An attempt counts before its password is verified, so that concurrent attempts cannot slip through. Memory is bounded;
the entry with the oldest failure is dropped first.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

FREE_FOR_ACCOUNT, FREE_FOR_SOURCE, FREE_FOR_SITE = 5, 20, 100
"""Failures without a delay: per account and source, per source, and per IPv6 site. Many users may share a source."""
INITIAL_DELAY_SECONDS, MAX_DELAY_SECONDS = 1.0, 300.0
EXPIRY_SECONDS = 3600.0
MAX_ENTRIES = 10_000

Key = tuple[str, ...]


@dataclass(slots=True)
class _Failures:
    count: int
    last: float

    def wait(self, now: float, free: int) -> float:
        if self.count < free:
            return 0.0
        delay = min(INITIAL_DELAY_SECONDS * 2.0 ** min(self.count - free, 20), MAX_DELAY_SECONDS)
        return max(0.0, self.last + delay - now)


class _FailureCounter:
    def __init__(self, free: int) -> None:
        self._free = free
        self._failures: OrderedDict[Key, _Failures] = OrderedDict()

    def wait(self, key: Key, now: float) -> float:
        known = self._failures.get(key)
        if known is not None and now - known.last > EXPIRY_SECONDS:
            del self._failures[key]
            known = None
        return known.wait(now, self._free) if known is not None else 0.0

    def count(self, key: Key, now: float) -> None:
        known = self._failures.setdefault(key, _Failures(0, now))
        known.count, known.last = known.count + 1, now
        self._failures.move_to_end(key)
        if len(self._failures) > MAX_ENTRIES:
            self._failures.popitem(last=False)

    def decrement(self, key: Key) -> None:
        known = self._failures.get(key)
        if known is not None:
            known.count = max(0, known.count - 1)

    def clear(self, key: Key) -> None:
        self._failures.pop(key, None)

    def __len__(self) -> int:
        return len(self._failures)


class LoginThrottle:
    """Throttles logins by account and source."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._accounts = _FailureCounter(FREE_FOR_ACCOUNT)  # per account and source
        self._sources = _FailureCounter(FREE_FOR_SOURCE)
        self._sites = _FailureCounter(FREE_FOR_SITE)
        self._successes: OrderedDict[Key, None] = OrderedDict()

    def attempt(self, account: str, address: str) -> float:
        """Seconds until the next attempt is allowed, or 0; then this attempt counts as failed until it succeeds."""
        now, entries = self._clock(), list(self._entries(account, address))
        wait = max(counter.wait(key, now) for counter, key in entries)
        if not wait:
            for counter, key in entries:
                counter.count(key, now)
        return wait

    def succeeded(self, account: str, address: str) -> None:
        """Only this attempt of the source is forgotten: otherwise a guesser could log in as themselves in between."""
        (accounts, pair), *sources = self._entries(account, address)
        accounts.clear(pair)
        for counter, key in sources:
            counter.decrement(key)
        self._successes[pair] = None
        self._successes.move_to_end(pair)
        if len(self._successes) > MAX_ENTRIES:
            self._successes.popitem(last=False)

    def has_succeeded(self, account: str, address: str) -> bool:
        """Whether this account logged in from this source before."""
        return (account, _networks(address)[0]) in self._successes

    def _entries(self, account: str, address: str) -> Iterator[tuple[_FailureCounter, Key]]:
        source, *site = _networks(address)
        yield self._accounts, (account, source)
        yield self._sources, (source,)
        yield from ((self._sites, (each,)) for each in site)


def _networks(address: str) -> tuple[str, ...]:
    """The source, and for IPv6 its site: a client typically controls a /64, often a /48."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return (address,)
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped:
            return (str(parsed.ipv4_mapped),)
        return tuple(str(ipaddress.ip_network((parsed, length), strict=False)) for length in (64, 48))
    return (str(parsed),)
