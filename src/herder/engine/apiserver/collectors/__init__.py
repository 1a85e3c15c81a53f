"""What the controller-manager does on a real cluster for objects to behave: collect, furnish, expire.

One watch of the whole store feeds them all; each acts through the API like any client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime

from herder.engine.apiserver.collectors.accounts import AccountCollector, IssueToken
from herder.engine.apiserver.collectors.controller_client import ControllerClient
from herder.engine.apiserver.collectors.expiry import EventExpiry
from herder.engine.apiserver.collectors.garbage import GarbageCollector
from herder.engine.apiserver.collectors.namespaces import NamespaceCollector
from herder.engine.apiserver.resources import Registry
from herder.engine.client.wire import Transport, User
from herder.engine.control.source import StoreInformer
from herder.engine.logs import get_logger
from herder.engine.store import Event, Store

log = get_logger(__name__)

Act = Callable[[User], Transport]
_Collector = GarbageCollector | NamespaceCollector | AccountCollector


class Collectors:
    def __init__(
        self,
        store: Store,
        registry: Registry,
        act_as: Act,
        *,
        clock: Callable[[], datetime],
        ca: bytes,
        issue: IssueToken,
    ) -> None:
        self._store = store
        self._registry = registry
        self._act_as = act_as
        self._clock = clock
        self._ca = ca
        self._issue = issue

    def _api(self, account: str) -> ControllerClient:
        return ControllerClient(self._store, self._registry, self._act_as(_controller(account)), name=account)

    def _make(self) -> tuple[GarbageCollector, NamespaceCollector, AccountCollector]:
        return (
            GarbageCollector(self._api("generic-garbage-collector")),
            NamespaceCollector(self._api("namespace-controller"), self._clock),
            AccountCollector(self._api("service-account-controller"), ca=self._ca, issue=self._issue),
        )

    async def run(self) -> None:
        """Until cancelled."""
        collectors = self._make()
        expiry = EventExpiry(self._api("ttl-controller"), self._clock)

        def resync() -> None:
            for collector in collectors:
                collector.reset()
            for record in self._store.all():
                _show(collectors, Event(record.revision, record, None, deleted=False))

        informer = StoreInformer(self._store, "", resync=resync, changed=lambda event: _show(collectors, event))
        async with asyncio.TaskGroup() as tasks:
            for controller in (*collectors, expiry):
                tasks.create_task(controller.work())
            tasks.create_task(informer.run())


def _show(collectors: Sequence[_Collector], event: Event) -> None:
    """An object that one collector cannot read is lost to that one alone."""
    for collector in collectors:
        try:
            collector.seen(event)
        except Exception as error:
            log.error(
                "object ignored", collector=type(collector).__name__, object=str(event.record.key), exc_info=error
            )


def _controller(account: str) -> User:
    """As the controller-manager's own controllers are known, with the rights to clean up anywhere."""
    name = f"system:serviceaccount:kube-system:{account}"
    groups = ("system:serviceaccounts", "system:serviceaccounts:kube-system", "system:masters", "system:authenticated")
    return User(name, groups=groups)
