"""Slows down who guesses passwords: for a user, and from an address, ever longer waits after a few failures.

An attempt counts before its password is looked at, so that a thousand at once are not let through together. What is
kept is bounded; the one that failed longest ago is forgotten first.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

FREE_FOR_USER, FREE_FOR_ADDRESS = 5, 20
"""Failures that cost no wait. Many users may share an address."""
FIRST_SECONDS, LONGEST_SECONDS = 1.0, 300.0
FORGOTTEN_SECONDS = 3600.0
KEPT = 10_000


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
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def wait(self, key: str, now: float) -> float:
        known = self._failures.get(key)
        if known is not None and now - known.last > FORGOTTEN_SECONDS:
            del self._failures[key]
            known = None
        return known.wait(now, self._free) if known is not None else 0.0

    def count(self, key: str, now: float) -> None:
        known = self._failures.setdefault(key, _Failures(0, now))
        known.count, known.last = known.count + 1, now
        self._failures.move_to_end(key)
        if len(self._failures) > KEPT:
            self._failures.popitem(last=False)

    def take_back(self, key: str) -> None:
        known = self._failures.get(key)
        if known is not None:
            known.count = max(0, known.count - 1)

    def clear(self, key: str) -> None:
        self._failures.pop(key, None)


class Lockout:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._users = _Ledger(FREE_FOR_USER)
        self._addresses = _Ledger(FREE_FOR_ADDRESS)

    def attempt(self, username: str, address: str) -> float:
        """Seconds to wait before another attempt, or 0: then this one counts as failed until it has succeeded."""
        now, network = self._clock(), _network(address)
        wait = max(self._users.wait(username, now), self._addresses.wait(network, now))
        if not wait:
            self._users.count(username, now)
            self._addresses.count(network, now)
        return wait

    def succeeded(self, username: str, address: str) -> None:
        """Of the address only this attempt is forgotten: else a guesser would log in as himself in between."""
        self._users.clear(username)
        self._addresses.take_back(_network(address))


def _network(address: str) -> str:
    """Who has one address of IPv6 has 2^64 of them."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
