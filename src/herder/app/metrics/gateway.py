"""Metrics of the gateway: tunnels of cluster agents, connections of node agents, and the HTTP listener."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from herder.engine.control.cache import Key
from herder.engine.control.metric_family import counter, gauge

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from herder.engine.control.metrics import Metrics
    from herder.engine.front.http import HttpFront
    from herder.engine.runtime.manager import Manager
    from herder.engine.store.store import Store
    from herder.tunnel.registry import Registry  # imports aiohttp, which a server without a gateway does not need

CLIENTS = gauge("herder_tunnel_connected_clients", "Agents with a tunnel to this process")
PEERS = gauge("herder_tunnel_connected_peers", "Other replicas with a tunnel to this process")
SESSIONS = gauge("herder_tunnel_sessions", "Open sessions of agents and replicas; an agent may have several")
OPENED = counter("herder_tunnel_sessions_opened_total", "Sessions that were opened")
REPLACED = counter("herder_tunnel_sessions_replaced_total", "Sessions that were closed because one agent had too many")
DISCONNECTS = counter("herder_tunnel_disconnects_total", "Agents whose last session ended")
RECONNECTS = counter("herder_tunnel_reconnects_total", "Agents that connected again after their last session ended")
FAILED_DIALS = counter("herder_tunnel_failed_dials_total", "Requests for a cluster whose agent was not connected")
STREAMS = counter("herder_tunnel_streams_total", "Connections through tunnels")
RECEIVED = counter("herder_tunnel_received_bytes_total", "Bytes received through tunnels")
SENT = counter("herder_tunnel_sent_bytes_total", "Bytes sent through tunnels")
BUFFERED = gauge("herder_tunnel_buffered_bytes", "Bytes received through tunnels that their readers have not taken")
PAUSES = counter("herder_tunnel_pauses_total", "Times that a sender was paused because its reader was slow")
OVERFLOWS = counter("herder_tunnel_overflows_total", "Connections ended because their sender ignored a pause")
TUNNEL_FAMILIES = (
    CLIENTS,
    PEERS,
    SESSIONS,
    OPENED,
    REPLACED,
    DISCONNECTS,
    RECONNECTS,
    FAILED_DIALS,
    STREAMS,
    RECEIVED,
    SENT,
    BUFFERED,
    PAUSES,
    OVERFLOWS,
)

NODE_AGENTS = gauge("herder_node_agents_connected", "Node agents that watch their plan through this process")
NODE_FAMILIES = (NODE_AGENTS,)

CONNECTIONS = gauge("herder_http_connections", "Connections of the listener, handshakes included")
IN_FLIGHT = gauge("herder_http_requests_in_flight", "Requests in progress, without long-running ones")
LONG_RUNNING = gauge("herder_http_long_running_requests", "Long-running requests: watches, logs and upgrades")
WAITING = gauge("herder_http_requests_waiting", "Requests that wait because their user has too many in progress")
HTTP_FAMILIES = (CONNECTIONS, IN_FLIGHT, LONG_RUNNING, WAITING)


def add_tunnel_metrics(metrics: Metrics, tunnels: Registry) -> None:
    metrics.registry.register(_TunnelCollector(tunnels))


def add_node_agent_metric(metrics: Metrics, connected: Callable[[], int]) -> None:
    NODE_AGENTS.gauge(metrics.registry).set_function(connected)


def add_http_metrics(metrics: Metrics, front: HttpFront) -> None:
    metrics.registry.register(_HttpCollector(front))


def agents_that_watch(store: Store, manager: Manager) -> int:
    """Node agents of the embedded server: watches of one Secret that is a plan."""
    from herder.api.rke.kinds import PLAN_SECRET

    plans, scopes = manager.caches.get(PLAN_SECRET), store.statistics().watches
    if plans is None:
        return 0
    resource = str(PLAN_SECRET.resource.group_resource)
    return sum(scope[0] == resource and Key(*scope[1:]) in plans for scope in scopes)


class _TunnelCollector:
    def __init__(self, tunnels: Registry) -> None:
        self._tunnels = tunnels

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        counters = self._tunnels.counters
        traffic = counters.traffic
        yield from (
            CLIENTS.sample(len(self._tunnels.clients())),
            PEERS.sample(len(self._tunnels.peers())),
            SESSIONS.sample(counters.sessions),
            OPENED.sample(counters.sessions_opened),
            REPLACED.sample(counters.sessions_replaced),
            DISCONNECTS.sample(counters.disconnects),
            RECONNECTS.sample(counters.reconnects),
            FAILED_DIALS.sample(counters.failed_dials),
            STREAMS.sample(traffic.streams),
            RECEIVED.sample(traffic.received_bytes),
            SENT.sample(traffic.sent_bytes),
            BUFFERED.sample(traffic.buffered),
            PAUSES.sample(traffic.pauses),
            OVERFLOWS.sample(traffic.overflows),
        )


class _HttpCollector:
    def __init__(self, front: HttpFront) -> None:
        self._front = front

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        load = self._front.load()
        values = load.connections, load.in_flight, load.long_running, load.waiting
        for family, value in zip(HTTP_FAMILIES, values, strict=True):
            yield family.sample(value)
