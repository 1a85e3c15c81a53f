"""Gateway replicas: each holds a Lease that announces its peer address.

As in leader election, a Lease has expired when it was not renewed for its full duration by the observer's own clock.
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
GATEWAY = f"{PREFIX}gateway"  # label of these Leases; their name is the replica's
PEER_ADDRESS = f"{PREFIX}peer-address"  # annotation: host:port for other replicas

LEASE_SECONDS = 30
RENEW_SECONDS = 10.0
RELEASE_SECONDS = 5.0


class Membership(Protocol):
    """Live replicas as seen by this one."""

    @property
    def own(self) -> str:
        """Name of this replica."""

    def alive(self, name: str) -> bool: ...

    def listen(self, changed: Callable[[], None]) -> None:
        """Register a callback for joining and leaving replicas."""


class SingleReplica:
    """The only replica, as in the embedded server: all others are gone."""

    def __init__(self, own: str) -> None:
        self.own = own

    def alive(self, name: str) -> bool:
        return name == self.own

    def listen(self, changed: Callable[[], None]) -> None:
        """Never called."""


class Replicas:
    """Watches the Leases of the other replicas, and holds this one's."""

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
        self._informer = Informer(client, self._leases, self._lease_changed, namespace=SYSTEM_NAMESPACE, labels=GATEWAY)
        self._expiries: dict[str, asyncio.TimerHandle] = {}  # expiry timers of the other live replicas
        self._listeners: list[Callable[[], None]] = []
        self._tasks = Tasks()

    # --- other replicas ---------------------------------------------------------------------------------------------

    def alive(self, name: str) -> bool:
        return name == self.own or name in self._expiries

    def others(self) -> dict[str, str]:
        """Peer addresses of live replicas by name."""
        leases = ((name, self._leases.get(Key(SYSTEM_NAMESPACE, name))) for name in self._expiries)
        return {name: annotations_of(lease).get(PEER_ADDRESS, "") for name, lease in leases if lease is not None}

    def listen(self, changed: Callable[[], None]) -> None:
        self._listeners.append(changed)

    async def run(self) -> None:
        """Watch the other replicas until canceled."""
        try:
            await self._informer.run()
        finally:
            for timer in self._expiries.values():
                timer.cancel()
            await self._tasks.stop()

    async def ready(self) -> None:
        await self._informer.synced.wait()

    def _lease_changed(self, change: Change) -> None:
        name = change.key.name
        if name == self.own:
            return
        if change.new is None:
            self._mark_gone(name)
        elif change.old is None or _renewed(change.old) != _renewed(change.new):
            self._mark_alive(name, change.new)

    def _mark_alive(self, name: str, lease: Object) -> None:
        known = self._expiries.pop(name, None)
        if known is not None:
            known.cancel()
        seconds = float((lease.get("spec") or {}).get("leaseDurationSeconds") or self._seconds)
        self._expiries[name] = asyncio.get_running_loop().call_later(seconds, self._expired, name)
        if known is None:
            log.info("gateway replica joined", replica=name)
            self._notify()

    def _expired(self, name: str) -> None:
        self._mark_gone(name)
        lease = self._leases.get(Key(SYSTEM_NAMESPACE, name))
        if lease is not None:
            self._tasks.spawn(self._remove(lease), name=f"lease of {name}")

    def _mark_gone(self, name: str) -> None:
        timer = self._expiries.pop(name, None)
        if timer is not None:
            timer.cancel()
            log.info("gateway replica left", replica=name)
            self._notify()

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()

    async def _remove(self, lease: Object) -> None:
        """Delete the expired Lease; a replica that was only slow has renewed it or recreates it."""
        meta = lease["metadata"]
        with suppress(StatusError, OSError, TimeoutError):
            await self._client.delete(
                LEASE.resource,
                meta["name"],
                namespace=SYSTEM_NAMESPACE,
                uid=meta["uid"],
                resource_version=meta["resourceVersion"],
            )

    # --- own Lease --------------------------------------------------------------------------------------------------

    async def announce(self) -> None:
        """Create or renew the Lease."""
        await self._client.apply(LEASE.resource, self._lease())

    async def renew_lease(self) -> None:
        """Renew until canceled, then delete the Lease so that others notice at once."""
        try:
            while True:
                await asyncio.sleep(self._renew)
                try:
                    await self.announce()
                except (StatusError, OSError, TimeoutError) as error:
                    log.warning("cannot renew the Lease of this replica", error=str(error))
        finally:
            with suppress(StatusError, OSError, TimeoutError):
                async with asyncio.timeout(RELEASE_SECONDS):
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
