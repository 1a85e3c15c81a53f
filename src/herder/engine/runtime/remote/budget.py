"""The memory that the caches of all downstream clusters share.

What a cluster reports is the cluster's own choice, and users bring clusters of their own. Each is limited alone; the
budget limits all of them together. When it is used up, a cluster gets more only if another holds at least twice as
much, which then has to give way. So clusters that hold little are observed whatever others do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

MAX_BYTES = 512 << 20


class Budget:
    def __init__(self) -> None:
        self._most = MAX_BYTES
        self._held: Counter[str] = Counter()  # by cluster
        self._total = 0
        self._accounts: dict[Account, None] = {}

    def open(self, cluster: str, evict: Callable[[], None]) -> Account:
        """`evict` is called when others need the memory: what was held is to be dropped."""
        return Account(self, cluster, evict)

    def claim(self, account: Account, size: int) -> bool:
        grown = size - account.held
        while grown > 0 and self._total + grown > self._most:
            largest, held = max(self._held.items(), key=lambda item: item[1], default=("", 0))
            if held < 2 * (
                self._held[account.cluster] + grown
            ):  # two that are alike would displace each other for ever
                return False
            self._evict(largest)
        self._keep(account, size)
        return True

    def _evict(self, cluster: str) -> None:
        for account in [each for each in self._accounts if each.cluster == cluster]:
            self._keep(account, 0)
            account.evict()

    def _keep(self, account: Account, size: int) -> None:
        grown = size - account.held
        account.held = size
        self._total += grown
        self._held[account.cluster] += grown
        if not self._held[account.cluster]:
            del self._held[account.cluster]
        if size:
            self._accounts[account] = None
        else:
            self._accounts.pop(account, None)


class Account:
    """What one observation holds of the budget, in bytes of encoded objects."""

    def __init__(self, budget: Budget, cluster: str, evict: Callable[[], None]) -> None:
        self.cluster = cluster
        self.evict = evict
        self.held = 0
        self._budget = budget

    def claim(self, size: int) -> bool:
        """Hold so much in place of what was held; False where that is more than the budget has for this cluster."""
        return self._budget.claim(self, size)

    def release(self) -> None:
        self._budget.claim(self, 0)
