"""Leader election with a Lease and client-go's semantics: each candidate measures expiry with its own clock.

A candidate acquires the Lease when it has not seen the record change for a whole lease duration, so clocks need not be
synchronized. The leader stops when it could not renew for `renew_seconds`, which is shorter, so it has stopped before
another candidate starts. It stops immediately when the record names another holder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from herder.engine.client.client import Client
from herder.engine.logs import get_logger
from herder.engine.meta.errors import AlreadyExists, Conflict, NotFound, StatusError
from herder.engine.meta.kinds import GroupVersionResource, Object

log = get_logger(__name__)

LEASES = GroupVersionResource("coordination.k8s.io", "v1", "leases")


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """client-go's LeaseDuration, RenewDeadline and RetryPeriod."""

    lease_seconds: float = 15.0
    renew_seconds: float = 10.0
    retry_seconds: float = 2.0


class _LeaseState(Enum):
    """Result of one attempt to acquire or renew the Lease."""

    HELD = 1
    TAKEN = 2  # held by another candidate
    UNKNOWN = 3  # the record could not be read or written


class LeaderElection:
    """One candidate for a Lease."""

    def __init__(
        self,
        client: Client,
        *,
        name: str,
        namespace: str,
        identity: str,
        clock: Callable[[], datetime],
        times: LeaseTimes | None = None,
    ) -> None:
        self._client = client
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._clock = clock
        self._times = times or LeaseTimes()
        self._seen: tuple[str, str] = ("", "")  # holder and renewTime as last read
        self._seen_at = float("-inf")
        self.leading = False

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Acquire the Lease and run `lead` while holding it; return when `lead` returns or the Lease is lost."""
        await self._acquire()
        self.leading = True
        log.info("leading", lease=f"{self._namespace}/{self._name}", identity=self._identity)
        leading = asyncio.ensure_future(lead())
        renewing = asyncio.ensure_future(self._renew())
        try:
            await asyncio.wait([leading, renewing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.leading = False
            for task in (leading, renewing):
                task.cancel()
            await asyncio.gather(leading, renewing, return_exceptions=True)
            await self._release()
        if not leading.cancelled():
            leading.result()

    async def close(self) -> None:
        await self._client.close()

    async def _acquire(self) -> None:
        outcome = await self._try(self._times.renew_seconds)
        while outcome is not _LeaseState.HELD:
            await asyncio.sleep(self._times.retry_seconds)
            outcome = await self._try(self._times.renew_seconds)

    async def _renew(self) -> None:
        loop = asyncio.get_running_loop()
        renewed = loop.time()
        while True:
            await asyncio.sleep(self._times.retry_seconds)
            attempted = (
                loop.time()
            )  # the record is written after this moment, so counting from here is on the safe side
            outcome = await self._try(renewed + self._times.renew_seconds - attempted)
            if outcome is _LeaseState.HELD:
                renewed = attempted
            elif outcome is _LeaseState.TAKEN or loop.time() - renewed >= self._times.renew_seconds:
                log.error("lease lost", lease=f"{self._namespace}/{self._name}")
                return

    async def _try(self, seconds: float) -> _LeaseState:
        """Try once to acquire or renew the Lease, within a time limit."""
        try:
            async with asyncio.timeout(max(seconds, 0.001)):
                return await self._take_or_renew()
        except (Conflict, AlreadyExists):
            return _LeaseState.UNKNOWN
        except TimeoutError:
            log.warning("lease not readable", error="response timed out")
            return _LeaseState.UNKNOWN
        except StatusError as error:
            log.warning("lease not readable", error=error.message)
            return _LeaseState.UNKNOWN

    async def _take_or_renew(self) -> _LeaseState:
        try:
            lease = await self._client.get(LEASES, self._name, namespace=self._namespace)
        except NotFound:
            await self._client.create(LEASES, self._record(None), namespace=self._namespace)
            return _LeaseState.HELD
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder and holder != self._identity and (self.leading or not self._expired(holder, spec)):
            return _LeaseState.TAKEN
        await self._client.update(LEASES, self._record(lease))
        return _LeaseState.HELD

    def _expired(self, holder: str, spec: Object) -> bool:
        now = asyncio.get_running_loop().time()
        seen = (holder, str(spec.get("renewTime")))
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        return now - self._seen_at > float(spec.get("leaseDurationSeconds") or self._times.lease_seconds)

    def _record(self, lease: Object | None) -> Object:
        now = micro_time(self._clock())
        old = (lease or {}).get("spec") or {}
        is_own = old.get("holderIdentity") == self._identity
        spec: Object = {
            **old,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(max(self._times.lease_seconds, 1)),
            "acquireTime": old.get("acquireTime") if is_own else now,
            "renewTime": now,
            "leaseTransitions": int(old.get("leaseTransitions") or 0) + (0 if is_own or lease is None else 1),
        }
        metadata = lease["metadata"] if lease else {"name": self._name, "namespace": self._namespace}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}

    async def _release(self) -> None:
        """Release the Lease so that another candidate can acquire it immediately. If this fails, it expires."""
        try:
            async with asyncio.timeout(self._times.renew_seconds / 2):
                while not await self._try_release():
                    log.debug("lease release retried", lease=f"{self._namespace}/{self._name}")
        except (StatusError, TimeoutError) as error:
            log.warning("lease not released", error=str(error))

    async def _try_release(self) -> bool:
        """Release the Lease. Returns False if an abandoned renewal of our own was still in flight and came first."""
        lease = await self._client.get(LEASES, self._name, namespace=self._namespace)
        if (lease.get("spec") or {}).get("holderIdentity") == self._identity:
            spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
            try:
                await self._client.update(LEASES, {**lease, "spec": spec})
            except Conflict:
                return False
        return True


def micro_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
