"""Slows down whoever guesses passwords, and never the owner of an account.

Failures count against the source that caused them: for one account from one source, and for all accounts from one
source. They never count against the account alone, or anyone could lock its owner out by typing wrong passwords. A
right password from a source that is not throttled itself always succeeds. Guesses from many sources are bounded by what
comparing passwords costs (`passwords.py`).

An attempt counts before its password is compared, so that a thousand at once are not let through together. What is kept
is bounded; the entry that failed longest ago is dropped first.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

FREE_FOR_ACCOUNT, FREE_FOR_SOURCE, FREE_FOR_SITE = 5, 20, 100
"""Failures that cost no wait: of one account from one source, of one source, and of one site of IPv6 sources. Many
users may share a source."""
FIRST_SECONDS, LONGEST_SECONDS = 1.0, 300.0
FORGOTTEN_SECONDS = 3600.0
KEPT = 10_000

Key = tuple[str, ...]


@dataclass(slots=True)
class _Failures:
    count: int
    last: float

    def wait(self, now: float, free: int) -> float:
        if self.count < free:
            return 0.0
        delay = min(FIRST_SECONDS * 2.0 ** min(self.count - free, 20), LONGEST_SECONDS)
        return max(0.0, self.last + delay - now)


class _Ledger:
    def __init__(self, free: int) -> None:
        self._free = free
        self._failures: OrderedDict[Key, _Failures] = OrderedDict()

    def wait(self, key: Key, now: float) -> float:
        known = self._failures.get(key)
        if known is not None and now - known.last > FORGOTTEN_SECONDS:
            del self._failures[key]
            known = None
        return known.wait(now, self._free) if known is not None else 0.0

    def count(self, key: Key, now: float) -> None:
        known = self._failures.setdefault(key, _Failures(0, now))
        known.count, known.last = known.count + 1, now
        self._failures.move_to_end(key)
        if len(self._failures) > KEPT:
            self._failures.popitem(last=False)

    def take_back(self, key: Key) -> None:
        known = self._failures.get(key)
        if known is not None:
            known.count = max(0, known.count - 1)

    def clear(self, key: Key) -> None:
        self._failures.pop(key, None)

    def __len__(self) -> int:
        return len(self._failures)


class LoginThrottle:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._accounts = _Ledger(FREE_FOR_ACCOUNT)  # by account and source
        self._sources = _Ledger(FREE_FOR_SOURCE)
        self._sites = _Ledger(FREE_FOR_SITE)
        self._successes: OrderedDict[Key, None] = OrderedDict()

    def attempt(self, account: str, address: str) -> float:
        """Seconds to wait before another attempt, or 0: then this one counts as failed until it has succeeded."""
        now, entries = self._clock(), list(self._entries(account, address))
        wait = max(ledger.wait(key, now) for ledger, key in entries)
        if not wait:
            for ledger, key in entries:
                ledger.count(key, now)
        return wait

    def succeeded(self, account: str, address: str) -> None:
        """Of the source only this attempt is forgotten: else a guesser would log in as themselves in between."""
        (accounts, pair), *sources = self._entries(account, address)
        accounts.clear(pair)
        for ledger, key in sources:
            ledger.take_back(key)
        self._successes[pair] = None
        self._successes.move_to_end(pair)
        if len(self._successes) > KEPT:
            self._successes.popitem(last=False)

    def has_succeeded(self, account: str, address: str) -> bool:
        """Whether this account was logged in to from this source before."""
        return (account, _networks(address)[0]) in self._successes

    def _entries(self, account: str, address: str) -> Iterator[tuple[_Ledger, Key]]:
        source, *site = _networks(address)
        yield self._accounts, (account, source)
        yield self._sources, (source,)
        yield from ((self._sites, (each,)) for each in site)


def _networks(address: str) -> tuple[str, ...]:
    """The source, and of IPv6 the site that it belongs to. Whoever has one address of IPv6 has 2^64 of them, and often
    2^16 such networks."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return (address,)
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped:
            return (str(parsed.ipv4_mapped),)
        return tuple(str(ipaddress.ip_network((parsed, length), strict=False)) for length in (64, 48))
    return (str(parsed),)
