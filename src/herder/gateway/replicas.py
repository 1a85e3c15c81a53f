"""The replicas of the gateway. Each keeps a Lease while it lives, which tells the others that it does, and where it is.

As in an election, a Lease is over when it has not been seen to change for its whole duration by one's own clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Protocol

from herder.api.capi.names import annotations_of
from herder.api.management.names import PREFIX, SYSTEM_NAMESPACE
from herder.engine.client.client import Client
from herder.engine.control.cache import Cache, Change, Key
from herder.engine.control.informer import Informer
from herder.engine.control.tasks import Tasks
from herder.engine.logs import get_logger
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.election import micro_time

log = get_logger(__name__)

LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases")
GATEWAY = f"{PREFIX}gateway"  # label of these Leases, whose name is the replica's
PEER_ADDRESS = f"{PREFIX}peer-address"  # annotation: host:port, where other replicas reach this one

LEASE_SECONDS = 30
RENEW_SECONDS = 10.0
LEAVING_SECONDS = 5.0


class Membership(Protocol):
    """Which replicas there are, as far as this one can tell."""

    @property
    def own(self) -> str:
        """The name of this one."""

    def alive(self, name: str) -> bool: ...

    def listen(self, changed: Callable[[], None]) -> None:
        """`changed` is called when one has come or gone."""


class Alone:
    """The only replica, as the embedded server's gateway always is: all others are of the past."""

    def __init__(self, own: str) -> None:
        self.own = own

    def alive(self, name: str) -> bool:
        return name == self.own

    def listen(self, changed: Callable[[], None]) -> None:
        """There is never anything to tell."""


class Replicas:
    def __init__(
        self,
        client: Client,
        own: str,
        address: str,
        clock: Callable[[], datetime],
        *,
        seconds: int = LEASE_SECONDS,
        renew: float = RENEW_SECONDS,
    ) -> None:
        self.own = own
        self._client = client
        self._address = address
        self._clock = clock
        self._seconds = seconds
        self._renew = renew
        self._leases = Cache(LEASE)
        self._informer = Informer(client, self._leases, self._seen, namespace=SYSTEM_NAMESPACE, labels=GATEWAY)
        self._ends: dict[str, asyncio.TimerHandle] = {}  # of the others that are alive
        self._listeners: list[Callable[[], None]] = []
        self._tasks = Tasks()

    # --- the others -------------------------------------------------------------------------------------------------

    def alive(self, name: str) -> bool:
        return name == self.own or name in self._ends

    def others(self) -> dict[str, str]:
        """Where those are that live, by name."""
        leases = ((name, self._leases.get(Key(SYSTEM_NAMESPACE, name))) for name in self._ends)
        return {name: annotations_of(lease).get(PEER_ADDRESS, "") for name, lease in leases if lease is not None}

    def listen(self, changed: Callable[[], None]) -> None:
        self._listeners.append(changed)

    async def run(self) -> None:
        """Until cancelled: knows the others."""
        try:
            await self._informer.run()
        finally:
            for timer in self._ends.values():
                timer.cancel()
            await self._tasks.stop()

    async def ready(self) -> None:
        await self._informer.synced.wait()

    def _seen(self, change: Change) -> None:
        name = change.key.name
        if name == self.own:
            return
        if change.new is None:
            self._ended(name)
        elif change.old is None or _renewed(change.old) != _renewed(change.new):
            self._lives(name, change.new)

    def _lives(self, name: str, lease: Object) -> None:
        known = self._ends.pop(name, None)
        if known is not None:
            known.cancel()
        seconds = float((lease.get("spec") or {}).get("leaseDurationSeconds") or self._seconds)
        self._ends[name] = asyncio.get_running_loop().call_later(seconds, self._expired, name)
        if known is None:
            log.info("another replica of the gateway is there", replica=name)
            self._notify()

    def _expired(self, name: str) -> None:
        self._ended(name)
        lease = self._leases.get(Key(SYSTEM_NAMESPACE, name))
        if lease is not None:
            self._tasks.spawn(self._remove(lease), name=f"lease of {name}")

    def _ended(self, name: str) -> None:
        timer = self._ends.pop(name, None)
        if timer is not None:
            timer.cancel()
            log.info("a replica of the gateway is gone", replica=name)
            self._notify()

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()

    async def _remove(self, lease: Object) -> None:
        """What the dead leave behind. One that was only slow has renewed it, or makes another."""
        meta = lease["metadata"]
        with suppress(StatusError, OSError, TimeoutError):
            await self._client.delete(
                LEASE.resource,
                meta["name"],
                namespace=SYSTEM_NAMESPACE,
                uid=meta["uid"],
                resource_version=meta["resourceVersion"],
            )

    # --- this one ---------------------------------------------------------------------------------------------------

    async def enter(self) -> None:
        """The others know of it from here on."""
        await self._client.apply(LEASE.resource, self._lease())

    async def stay(self) -> None:
        """Until cancelled; then the others know at once."""
        try:
            while True:
                await asyncio.sleep(self._renew)
                try:
                    await self.enter()
                except (StatusError, OSError, TimeoutError) as error:
                    log.warning("the other replicas could not be told of this one", error=str(error))
        finally:
            with suppress(StatusError, OSError, TimeoutError):
                async with asyncio.timeout(LEAVING_SECONDS):
                    await self._client.delete(LEASE.resource, self.own, namespace=SYSTEM_NAMESPACE)

    def _lease(self) -> Object:
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": {
                "name": self.own,
                "namespace": SYSTEM_NAMESPACE,
                "labels": {GATEWAY: "true"},
                "annotations": {PEER_ADDRESS: self._address},
            },
            "spec": {
                "holderIdentity": self.own,
                "leaseDurationSeconds": self._seconds,
                "renewTime": micro_time(self._clock()),
            },
        }


def _renewed(lease: Object) -> object:
    return (lease.get("spec") or {}).get("renewTime")
