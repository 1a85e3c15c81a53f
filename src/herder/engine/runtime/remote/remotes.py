"""Registry of downstream clusters: subscriptions, and the connection and observations of each cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from herder.engine.client.client import Client
from herder.engine.control.tasks import Tasks
from herder.engine.meta.errors import ServiceUnavailable
from herder.engine.runtime.decision import Connect, Observe
from herder.engine.runtime.remote.budget import Budget
from herder.engine.runtime.remote.connection import ClusterConnection, Connector
from herder.engine.runtime.remote.observation import Observation, Wake, observation
from herder.engine.runtime.view import ConnectionStatus, Observed, Unreachable


class Remotes:
    """All downstream clusters with subscribers."""

    def __init__(self, connect: Connector, *, clock: Callable[[], datetime], tasks: Tasks) -> None:
        self._connect = connect
        self._clock = clock
        self._tasks = tasks
        self._budget = Budget()
        self._remotes: dict[str, _Remote] = {}
        self._subscriptions: dict[Hashable, tuple[Observe | Connect, ...]] = {}

    def subscribe(self, subscriptions: tuple[Observe | Connect, ...], subscriber: Hashable, wake: Wake) -> None:
        """Replace the subscriptions of a subscriber."""
        subscriptions = tuple(dict.fromkeys(subscriptions))  # parts of one decision may repeat a subscription
        for subscription in subscriptions:
            _check(subscription)
        previous = self._subscriptions.pop(subscriber, ())
        if subscriptions:
            self._subscriptions[subscriber] = subscriptions
        for subscription in subscriptions:
            self._remote(subscription.cluster).add(subscription, subscriber, wake)
        for subscription in previous:
            if subscription not in subscriptions:
                self._remotes[subscription.cluster].discard(subscription, subscriber)
        for cluster in dict.fromkeys(subscription.cluster for subscription in previous):
            if self._remotes[cluster].unused:
                self._remotes.pop(cluster).stop()

    def observed(self, subscription: Observe) -> Observed | Unreachable | None:
        remote = self._remotes.get(subscription.cluster)
        return remote.result(subscription) if remote else None

    def connection(self, cluster: str) -> ConnectionStatus | None:
        remote = self._remotes.get(cluster)
        return remote.connection.state if remote else None

    def client(self, cluster: str) -> Client:
        """Return the client for writes; raise immediately if the cluster is not connected or has no subscribers."""
        remote = self._remotes.get(cluster)
        if remote is None or remote.connection.client is None:
            reason = remote.connection.reason if remote else ""
            raise ServiceUnavailable(f"cluster {cluster} is not connected" + (f": {reason}" if reason else ""))
        return remote.connection.client

    def _remote(self, cluster: str) -> _Remote:
        remote = self._remotes.get(cluster)
        if remote is None:
            remote = self._remotes[cluster] = _Remote(
                cluster, self._connect, clock=self._clock, tasks=self._tasks, budget=self._budget
            )
        return remote


RemotePerformer = Callable[[Remotes, Mapping[str, Any]], Awaitable[Any]]
"""Performs an effect on downstream clusters, through the connections that decisions request."""


class _Remote:
    """One cluster: its connection, its observations, and the subscribers to its health."""

    def __init__(
        self, cluster: str, connect: Connector, *, clock: Callable[[], datetime], tasks: Tasks, budget: Budget
    ) -> None:
        self._clock = clock
        self._tasks = tasks
        self._budget = budget
        self._observations: dict[Observe, Observation] = {}
        self._connect_subscribers: dict[Hashable, tuple[Connect, Wake]] = {}
        self.connection = ClusterConnection(
            cluster,
            connect,
            clock=clock,
            opened=self._start_observations,
            dropped=self._stop_observations,
            on_health_change=self._report_health,
        )
        self.connection.start(tasks)

    @property
    def unused(self) -> bool:
        return not self._observations and not self._connect_subscribers

    def add(self, subscription: Observe | Connect, subscriber: Hashable, wake: Wake) -> None:
        if isinstance(subscription, Connect):
            # Only a changed credential counts: unchanged subscriptions may repeat an outdated one.
            current = self._connect_subscribers.get(subscriber)
            self._connect_subscribers[subscriber] = (subscription, wake)
            if subscription.credential and (current is None or current[0] != subscription):
                self.connection.use(subscription.credential)
            return
        unfocused = _without_focus(subscription)
        shared = self._observations.get(unfocused)
        if shared is None:
            shared = self._observations[unfocused] = observation(
                unfocused, clock=self._clock, tasks=self._tasks, budget=self._budget
            )
            if self.connection.client is not None:
                shared.start(self.connection.client)
        shared.add(subscription.focus, subscriber, wake)

    def discard(self, subscription: Observe | Connect, subscriber: Hashable) -> None:
        if isinstance(subscription, Connect):
            if subscriber in self._connect_subscribers and self._connect_subscribers[subscriber][0] == subscription:
                del self._connect_subscribers[subscriber]
            return
        unfocused = _without_focus(subscription)
        shared = self._observations[unfocused]
        shared.discard(subscription.focus, subscriber)
        if shared.unused:
            self._observations.pop(unfocused).invalidate()

    def result(self, subscription: Observe) -> Observed | Unreachable | None:
        if self.connection.reason:
            return Unreachable(self.connection.reason, self.connection.last_contact or self.connection.since)
        shared = self._observations.get(_without_focus(subscription))
        if shared is None:
            return None
        return shared.result(subscription.focus, self.connection.last_contact, subscription.values_of)

    def stop(self) -> None:
        self.connection.stop()
        for shared in self._observations.values():
            shared.invalidate()

    # --- connection callbacks -----------------------------------------------------------------------------------

    def _start_observations(self, client: Client) -> None:
        for shared in self._observations.values():
            shared.start(client)

    def _stop_observations(self) -> None:
        for shared in self._observations.values():
            shared.stop()

    def _report_health(self) -> None:
        if self.connection.reason:
            for shared in self._observations.values():
                shared.invalidate()
                shared.wake_all()
        for _, wake in list(self._connect_subscribers.values()):
            wake()


def _without_focus(subscription: Observe) -> Observe:
    """Return the subscription of the shared observation."""
    return replace(subscription, focus=None, values_of="")


def _check(subscription: Observe | Connect) -> None:
    if isinstance(subscription, Observe) and (subscription.focus is not None or subscription.values_of):
        index = subscription.focus[0] if subscription.focus is not None else subscription.values_of
        if subscription.projection is None or index not in subscription.projection.indexes:
            raise LookupError(
                f"subscription to {subscription.kind} focuses on '{index}', which is not an index of its projection"
            )
