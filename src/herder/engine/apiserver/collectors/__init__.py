"""Controllers of kube-controller-manager that the API needs: garbage collection, namespaces, service accounts, events.

A single watch of the whole store feeds them. They write through the API like any client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime

from herder.engine.apiserver.collectors.accounts import IssueToken, ServiceAccountController
from herder.engine.apiserver.collectors.controller_client import ControllerClient
from herder.engine.apiserver.collectors.expiry import EventExpiry
from herder.engine.apiserver.collectors.garbage import GarbageCollector
from herder.engine.apiserver.collectors.namespaces import NamespaceController
from herder.engine.apiserver.registry.resources import Registry
from herder.engine.control.source import StoreInformer
from herder.engine.logs import get_logger
from herder.engine.store import Event, Store
from herder.engine.wire import Transport, User

log = get_logger(__name__)

TransportFactory = Callable[[User], Transport]
_Controller = GarbageCollector | NamespaceController | ServiceAccountController


class Collectors:
    """Runs the controllers."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        transport_for: TransportFactory,
        *,
        clock: Callable[[], datetime],
        ca: bytes,
        issue: IssueToken,
    ) -> None:
        self._store = store
        self._registry = registry
        self._transport_for = transport_for
        self._clock = clock
        self._ca = ca
        self._issue = issue

    def _api(self, account: str) -> ControllerClient:
        return ControllerClient(self._store, self._registry, self._transport_for(_controller(account)), name=account)

    def _build_controllers(self) -> tuple[GarbageCollector, NamespaceController, ServiceAccountController]:
        return (
            GarbageCollector(self._api("generic-garbage-collector")),
            NamespaceController(self._api("namespace-controller"), self._clock),
            ServiceAccountController(self._api("service-account-controller"), ca=self._ca, issue=self._issue),
        )

    async def run(self) -> None:
        """Run until cancelled."""
        collectors = self._build_controllers()
        expiry = EventExpiry(self._api("ttl-controller"), self._clock)

        def resync() -> None:
            for collector in collectors:
                collector.reset()
            for record in self._store.all():
                _dispatch(collectors, Event(record.revision, record, None, deleted=False))

        informer = StoreInformer(self._store, "", resync=resync, changed=lambda event: _dispatch(collectors, event))
        async with asyncio.TaskGroup() as tasks:
            for controller in (*collectors, expiry):
                tasks.create_task(controller.run())
            tasks.create_task(informer.run())


def _dispatch(collectors: Sequence[_Controller], event: Event) -> None:
    """Pass an event to every controller. One that fails to decode it does not affect the others."""
    for collector in collectors:
        try:
            collector.handle_event(event)
        except Exception as error:
            log.error(
                "object ignored", collector=type(collector).__name__, object=str(event.record.key), exc_info=error
            )


def _controller(account: str) -> User:
    """Return the service account user of a kube-controller-manager controller, with permissions to clean up
    everywhere."""
    name = f"system:serviceaccount:kube-system:{account}"
    groups = ("system:serviceaccounts", "system:serviceaccounts:kube-system", "system:masters", "system:authenticated")
    return User(name, groups=groups)
