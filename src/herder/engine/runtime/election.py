"""Leader election by Lease, with client-go's semantics: one leader at a time, judged by each candidate's own clock.

A candidate takes over when it has not seen the record change for a whole lease duration as *it* measures time, so
clocks need not agree. The leader gives up when it could not renew for `renew_seconds`, which is shorter, so it has
stopped before another may start; and at once when it finds another's name in the record.
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
    lease_seconds: float = 15.0
    renew_seconds: float = 10.0
    retry_seconds: float = 2.0


class _Try(Enum):
    HELD = 1
    TAKEN = 2  # another holds it
    UNKNOWN = 3  # the record could not be read or written


class LeaderElection:
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
        self._seen: tuple[str, str] = ("", "")  # holder and renew time as last read
        self._seen_at = float("-inf")
        self.leading = False

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lease, run `lead` while holding it, end when it ends or the lease is lost."""
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
        while outcome is not _Try.HELD:
            await asyncio.sleep(self._times.retry_seconds)
            outcome = await self._try(self._times.renew_seconds)

    async def _renew(self) -> None:
        loop = asyncio.get_running_loop()
        renewed = loop.time()
        while True:
            await asyncio.sleep(self._times.retry_seconds)
            asked = loop.time()  # the lease counts from when the record was written, which is no sooner than this
            outcome = await self._try(renewed + self._times.renew_seconds - asked)
            if outcome is _Try.HELD:
                renewed = asked
            elif outcome is _Try.TAKEN or loop.time() - renewed >= self._times.renew_seconds:
                log.error("lost the lease", lease=f"{self._namespace}/{self._name}")
                return

    async def _try(self, seconds: float) -> _Try:
        """One attempt to take or renew the lease, within a time; whether we hold it now."""
        try:
            async with asyncio.timeout(max(seconds, 0.001)):
                return await self._take_or_renew()
        except (Conflict, AlreadyExists):
            return _Try.UNKNOWN
        except TimeoutError:
            log.warning("lease cannot be reached", error="no answer in time")
            return _Try.UNKNOWN
        except StatusError as error:
            log.warning("lease cannot be reached", error=error.message)
            return _Try.UNKNOWN

    async def _take_or_renew(self) -> _Try:
        try:
            lease = await self._client.get(LEASES, self._name, namespace=self._namespace)
        except NotFound:
            await self._client.create(LEASES, self._record(None), namespace=self._namespace)
            return _Try.HELD
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder and holder != self._identity and (self.leading or not self._expired(holder, spec)):
            return _Try.TAKEN
        await self._client.update(LEASES, self._record(lease))
        return _Try.HELD

    def _expired(self, holder: str, spec: Object) -> bool:
        now = asyncio.get_running_loop().time()
        seen = (holder, str(spec.get("renewTime")))
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        return now - self._seen_at > float(spec.get("leaseDurationSeconds") or self._times.lease_seconds)

    def _record(self, lease: Object | None) -> Object:
        now = micro_time(self._clock())
        old = (lease or {}).get("spec") or {}
        mine = old.get("holderIdentity") == self._identity
        spec: Object = {
            **old,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(max(self._times.lease_seconds, 1)),
            "acquireTime": old.get("acquireTime") if mine else now,
            "renewTime": now,
            "leaseTransitions": int(old.get("leaseTransitions") or 0) + (0 if mine or lease is None else 1),
        }
        metadata = lease["metadata"] if lease else {"name": self._name, "namespace": self._namespace}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}

    async def _release(self) -> None:
        """Leave the lease to whoever comes next, at once. Failing that, it expires by itself."""
        try:
            async with asyncio.timeout(self._times.renew_seconds / 2):
                while not await self._try_release():
                    log.debug("releases again", lease=f"{self._namespace}/{self._name}")
        except (StatusError, TimeoutError) as error:
            log.warning("lease not released", error=str(error))

    async def _try_release(self) -> bool:
        """False where a renewal of our own, given up but on its way already, came in between."""
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
